"""Measuring: contestants take turns, and the best turn of each counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from apac.progress import Progress


@dataclass(frozen=True)
class Entry:
    """One line of the result."""

    group: str  # what is measured, and on what
    name: str  # who does it
    value: float
    unit: str
    against: str = ""  # the line that it is compared with
    ratio: float | None = None  # of that line's value to this one's

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


Contestant = Callable[[], float]  # does some work and says how much


def race(group: str, contestants: Mapping[str, Contestant], rounds: int, progress: Progress) -> dict[str, float]:
    """Work a second of each. A machine is not equally fast all the time: turns are short, taken in rotation after one
    to warm up, and only the best of each counts, so that ratios are between equals."""
    for work in contestants.values():
        work()
    best = dict.fromkeys(contestants, 0.0)
    for number in range(rounds):
        for name, work in contestants.items():
            began = time.perf_counter()
            done = work()
            best[name] = max(best[name], done / (time.perf_counter() - began))
        progress(group, number + 1, rounds)
    return best
