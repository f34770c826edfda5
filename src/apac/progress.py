"""The callback through which long-running functions report progress."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called repeatedly with the same task name while `done` grows to `total`."""

    def __call__(self, task: str, done: int, total: int, note: str = "") -> None: ...


def part_of(progress: Progress, start: int, total: int, task: str | None = None) -> Progress:
    """Return the progress of a part that begins at `start` of `total`, as a part of the whole `task`."""
    return lambda own, done, _, note="": progress(task or own, start + done, total, note)


def no_progress(task: str, done: int, total: int, note: str = "") -> None:
    """Ignore progress (the default)."""
