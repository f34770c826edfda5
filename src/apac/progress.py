"""The callback through which long-running functions report progress."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called repeatedly with the same task name while `done` grows to `total`."""

    def __call__(self, task: str, done: int, total: int, note: str = "") -> None: ...


def no_progress(task: str, done: int, total: int, note: str = "") -> None:
    """Ignore progress (the default)."""
