"""Worker processes that share one listening socket."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from types import FrameType

from prometheus_client.multiprocess import mark_process_dead

from apac.errors import InputError
from apac.serve.metrics import SHARED_FOLDER
from apac.serve.signals import KILLED, handled_signals

POLL_SECONDS = 0.2
FIRST_DELAY, LONGEST_DELAY = 1.0, 30.0  # seconds before a worker that died at its start is started again
ATTEMPTS = 4  # to start each worker, if none was ever ready


@dataclass
class Worker:
    """The place of one worker process, which is started again when it dies."""

    context: SpawnContext
    work: Callable[[Event], None]
    failures: int = 0  # starts in a row after which it was not ready
    was_ready: bool = False
    process: BaseProcess | None = None
    ready: Event | None = None  # set by the process
    start_at: float = 0.0

    def poll(self) -> None:
        """Start the process if it is time; if it has died, say so and choose when to start it again."""
        now = time.monotonic()
        if self.process is None:
            if now >= self.start_at:
                self.ready = self.context.Event()
                self.process = self.context.Process(target=self.work, args=(self.ready,))
                self.process.start()
            return
        assert self.ready is not None
        is_ready = self.ready.is_set()
        self.was_ready |= is_ready
        if not self.process.is_alive():
            self.failures = 0 if is_ready else self.failures + 1
            delay = min(FIRST_DELAY * 2 ** (self.failures - 1), LONGEST_DELAY) if self.failures else 0.0
            status = self.process.exitcode
            print(f"a worker ended with status {status}; another starts in {delay:g} s", file=sys.stderr, flush=True)
            mark_process_dead(self.process.pid)
            self.process, self.start_at = None, now + delay


def supervise(work: Callable[[Event], None], count: int, listener: socket.socket, received: list[int]) -> None:
    """Run `work` in processes that accept from the listener, and replace those that die, until a signal.

    The processes set the event that they get when they are ready. The first signal ends the workers after all requests
    are answered, the second at once. Signals are added to `received`, which may have one already.
    """
    folder = tempfile.TemporaryDirectory(prefix="apac-metrics-")

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            for process in _processes(workers):
                process.kill()
            folder.cleanup()
            os._exit(KILLED)

    context = multiprocessing.get_context("spawn")  # a forked process cannot use the threads of torch
    workers = [Worker(context, work) for _ in range(count)]
    with folder:
        os.environ[SHARED_FOLDER] = folder.name
        try:
            with handled_signals(handle):
                while not received:
                    for worker in workers:
                        worker.poll()
                    if all(worker.failures >= ATTEMPTS and not worker.was_ready for worker in workers):
                        raise InputError("no worker can start; the lines above say why, or try with one worker.")
                    time.sleep(POLL_SECONDS)
                listener.close()  # otherwise clients could still connect, to a queue that no worker reads
                for process in _processes(workers):
                    process.terminate()
                for process in _processes(workers):
                    process.join()
        finally:
            for process in _processes(workers):
                process.kill()  # if it has not ended above
            del os.environ[SHARED_FOLDER]


def _processes(workers: Iterable[Worker]) -> list[BaseProcess]:
    return [worker.process for worker in workers if worker.process is not None]


def end_with_parent() -> None:
    """End this worker when its parent is killed, so that a new server can listen at the same port."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(KILLED)

    threading.Thread(target=watch, name="apac-parent", daemon=True).start()
