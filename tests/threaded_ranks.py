"""Ranks that are threads of this process: what they agree on, without the seconds that processes take to start."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier
from typing import Any, TypeVar

from apac.distributed.ranks.group import Group, _outcome, agreed

Result = TypeVar("Result")


@dataclass(frozen=True)
class ThreadedGroup(Group):
    """A rank that is a thread; its values are shared by a list."""

    values: list[Any] = field(default_factory=list)
    barrier: Barrier = field(default_factory=lambda: Barrier(1))

    def gather(self, value: Any) -> list[Any]:
        self.values[self.rank] = value
        self.barrier.wait(60)
        values = list(self.values)
        self.barrier.wait(60)
        return values

    def on_first(self, action: Callable[[], Result]) -> Result:
        value, failure = self.gather(_outcome(action) if self.first else None)[0]
        if failure is not None:
            raise agreed(failure)
        return value  # type: ignore[no-any-return]


def on_threads(size: int, function: Callable[[Group], Result]) -> list[Result]:
    """Return what function(group) returns on each rank."""
    values, barrier = [None] * size, Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(function, (ThreadedGroup(rank, size, values, barrier) for rank in range(size))))
