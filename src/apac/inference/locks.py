"""A lock for the state of a process."""

from __future__ import annotations

import os
from threading import RLock


class ProcessLock:
    """A lock that is free in a forked process: a thread that held it has stayed in the other one.

    >>> lock = ProcessLock()
    >>> with lock:
    ...     pass
    """

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()
