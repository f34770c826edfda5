"""Timing: contestants take turns, and the best turn of each counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from apac.progress import Progress


@dataclass(frozen=True)
class Entry:
    """One row of the results."""

    group: str  # what is measured
    name: str  # the contestant
    value: float
    unit: str
    against: str = ""  # the row to compare with
    ratio: float | None = None  # the value of that row divided by this one

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


Contestant = Callable[[], float]  # does some work and returns the amount


def race(group: str, contestants: Mapping[str, Contestant], rounds: int, progress: Progress) -> dict[str, float]:
    """Return the amount of work per second of each contestant.

    The speed of a machine varies over time. Contestants therefore alternate in short turns after one warm-up turn, and
    only the best turn counts, so that the ratios are comparable.
    """
    for work in contestants.values():
        work()
    best = dict.fromkeys(contestants, 0.0)
    for number in range(rounds):
        for name, work in contestants.items():
            started = time.perf_counter()
            done = work()
            best[name] = max(best[name], done / (time.perf_counter() - started))
        progress(group, number + 1, rounds)
    return best
