"""How long work tells how far it is, without knowing who watches."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called again and again with the same task name while `done` grows to `total`."""

    def __call__(self, task: str, done: int, total: int, note: str = "") -> None: ...


def no_progress(task: str, done: int, total: int, note: str = "") -> None:
    """The watcher that nobody watches."""
