"""What Ctrl-C and SIGTERM do."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

KILLED = 1  # exit status after a second signal
INTERRUPTED = 130  # after Ctrl-C: 128 + SIGINT, as in shells


@contextmanager
def handled_signals(handler: Callable[[int, FrameType | None], None]) -> Generator[None, None, None]:
    """Pass Ctrl-C and SIGTERM to the handler during the block, if this is the main thread; others get no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
