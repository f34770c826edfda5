"""The processes: listen, serve, drain and end."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from types import FrameType

import torch
import uvicorn

from apac.errors import InputError
from apac.limits import MODEL_NAME
from apac.runs.run import load
from apac.serve.app import build, services_of
from apac.serve.connections import Connection
from apac.serve.guard import Guard
from apac.serve.limits import Limits
from apac.serve.model import Model
from apac.serve.signals import INTERRUPTED, KILLED, handled_signals
from apac.serve.workers import end_with_parent, supervise
from apac.validation import quoted

LOCAL = ("127.0.0.1", "::1", "localhost")
# A worker that comes back from the network waits for Python at most this long; Python's own 5 ms are a whole batch.
SWITCH_SECONDS = 0.0005
NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MODEL_NAME - 1}}}")


@dataclass(frozen=True)
class Configuration:
    """What `serve` needs."""

    runs: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    workers: int = 1
    threads: int | None = None  # of each worker; None: torch's default
    seed: int = 0  # of requests that name none
    limits: Limits = field(default_factory=Limits)


def model_names(runs: Sequence[str]) -> dict[str, str]:
    """Return the runs by the names of their folders."""
    by_name: dict[str, str] = {}
    for run in runs:
        name = Path(run).resolve().name
        if not NAME.fullmatch(name):
            raise InputError(f"the folder {quoted(name)} has no name for an address; rename it to letters and digits.")
        if name in by_name:
            raise InputError(f"two runs are named {name}; rename the folder of one of them.")
        by_name[name] = run
    return by_name


def application(configuration: Configuration) -> Guard:
    """Load the runs and return the application that serves them."""
    limits = configuration.limits
    models = [
        Model(name, load(run), limits, configuration.seed) for name, run in model_names(configuration.runs).items()
    ]
    return build(models, limits, configuration.token.encode() if configuration.token else None)


def serve(configuration: Configuration, on_listening: Callable[[Sequence[str], str], None]) -> int:
    """Serve until a signal, and return its number: the first ends after all requests are answered, the second at once.

    `on_listening` gets the names of the models and the address of the server. Signals are handled from then on.
    """
    if configuration.host not in LOCAL and not configuration.token:
        raise InputError("a server that other machines reach needs a token; give one, or listen at 127.0.0.1.")
    with _listen(configuration.host, configuration.port) as listener:
        host, port = listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        guard = application(configuration)  # in the parent of workers too: an error is one sentence, not one per worker
        received: list[int] = []
        with handled_signals(lambda number, frame: received.append(number)):
            on_listening(list(services_of(guard).models), address)
            if configuration.workers > 1:
                supervise(partial(serve_process, configuration, listener), configuration.workers, listener, received)
            else:
                _run(configuration, guard, listener, received, is_worker=False)
        return received[0]


def serve_process(configuration: Configuration, listener: socket.socket, ready: Event) -> None:
    """Serve in a worker process, which sets the event when it is ready."""
    end_with_parent()
    guard = application(configuration)
    services_of(guard).before_listening = ready
    _run(configuration, guard, listener, [], is_worker=True)


def _run(
    configuration: Configuration, guard: Guard, listener: socket.socket, received: list[int], *, is_worker: bool
) -> None:
    with _process_settings(configuration.threads):
        Server(uvicorn_config(guard), guard, received, is_worker=is_worker).run([listener])
    if services_of(guard).is_decoding:
        # For clients that left. Python would wait for these threads, and a service manager might lose its patience.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(INTERRUPTED if received[0] == signal.SIGINT else 0)


@contextmanager
def _process_settings(threads: int | None) -> Iterator[None]:
    """Set what holds for the whole process: how often threads change, those of torch, and the log of requests."""
    requests = logging.getLogger("apac.serve.requests")
    before = sys.getswitchinterval(), torch.get_num_threads()
    log = requests.handlers, requests.propagate, requests.level
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(logging.Formatter("%(message)s"))
    try:
        sys.setswitchinterval(SWITCH_SECONDS)
        torch.set_num_threads(threads or before[1])
        requests.handlers, requests.propagate = [lines], False
        requests.setLevel(logging.INFO)
        yield
    finally:
        sys.setswitchinterval(before[0])
        torch.set_num_threads(before[1])
        requests.handlers, requests.propagate = log[:2]
        requests.setLevel(log[2])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except UnicodeError as error:
        raise InputError(f"{host} is not the name or address of a machine; choose another address.") from error
    except (OSError, OverflowError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).partition(" (while")[0]
        raise InputError(f"cannot listen at {host}, port {port}: {reason}; choose another address or port.") from error
    listener.set_inheritable(True)
    return listener


def uvicorn_config(guard: Guard) -> uvicorn.Config:
    limits = guard.limits
    return uvicorn.Config(
        guard,
        http=Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=round(limits.seconds + limits.body_seconds),
    )


class Server(uvicorn.Server):
    """Drains at the first signal, which it adds to `received`; a second signal ends the process at once."""

    def __init__(self, config: uvicorn.Config, guard: Guard, received: list[int], *, is_worker: bool) -> None:
        super().__init__(config)
        self._services = services_of(guard)
        self._received, self._is_worker = received, is_worker

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        with handled_signals(self.handle_exit):
            if self._received:  # before the handler above was set
                self._drain()
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # The signals of a terminal or a service manager reach a worker too: only its parent ends it at once.
        if self._services.draining and not self._is_worker:
            os._exit(KILLED)
        self._received.append(sig)
        self._drain()

    def _drain(self) -> None:
        self._services.draining = self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop to listen, and end after the last response."""
        loop = asyncio.get_running_loop()
        protocol = partial(Connection, self.config, self.server_state, self.lifespan.state)
        # Clients whose connections the system made, but which this process has not accepted yet, are answered too.
        adopted = [
            loop.create_task(loop.connect_accepted_socket(protocol, connection))
            for listener in sockets or ()
            for connection in _pending(listener)
        ]
        await super().shutdown(sockets)
        await asyncio.gather(*adopted, return_exceptions=True)


def _pending(listener: socket.socket) -> Iterator[socket.socket]:
    """Accept the connections that wait at a socket that does not block."""
    with suppress(OSError):  # when there are no more
        while True:
            yield listener.accept()[0]
