"""Handling of Ctrl-C and SIGTERM: at once, or during training after the current step, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from apac.cli.ranks import started_by_torchrun
from apac.serve.signals import handled_signals

_interrupted = threading.Event()


def remember_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt, as in Python, and remember it: some libraries ignore it while they load."""

    def handle(number: int, frame: FrameType | None) -> None:
        _interrupted.set()
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handle)


def was_interrupted() -> bool:
    """Return whether Ctrl-C was pressed. A library that ignored it may fail later, in any way."""
    return _interrupted.is_set()


@contextmanager
def interrupt_on_signal() -> Iterator[None]:
    """Raise KeyboardInterrupt by SIGTERM, by which launchers end a process, as by Ctrl-C. The handlers are restored.

    On a rank of torchrun, which forwards a Ctrl-C that the rank has already received, a second signal has no effect.
    """
    interrupted = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        again, interrupted = interrupted, True
        if not (again and started_by_torchrun()):
            raise KeyboardInterrupt

    with handled_signals(handle):
        yield


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Yield the `should_stop` callback of a training.

    After the first signal it returns True; a second signal raises KeyboardInterrupt immediately. Before the first call
    of `should_stop`, while data are loaded, the first signal also raises it. The handlers are restored on exit.

    On a rank of torchrun, which forwards a Ctrl-C that the rank has already received, a second signal has no effect.
    """
    requested = polled = False

    def should_stop() -> bool:
        nonlocal polled
        polled = True
        return requested

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        again, requested = requested, requested or polled or started_by_torchrun()
        if (again and not started_by_torchrun()) or not (again or polled):
            raise KeyboardInterrupt

    with handled_signals(handle):
        yield should_stop


def ignore_signal(number: signal.Signals) -> None:
    """Let the process end with its own status from here on."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(number, signal.SIG_IGN)
