"""The parts that are left: those of other processes are counted while they work, and looking at them costs little."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from apac.distributed.claims import Claims
from apac.distributed.file_list import store_list
from apac.distributed.job import Job
from apac.distributed.part_queue import PartQueue
from apac.distributed.parts import Parts


class Clock:
    """A clock that tests set. A look at the folder may take some time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def job(tmp_path: Path) -> Job:
    files = store_list(tmp_path, (f"{number}.png" for number in range(19)), part_size=2)  # the last part has one file
    return Job({"format": "csv", "classes": ["cat"]}, (), None, files, None)


@pytest.fixture
def claims(tmp_path: Path) -> Iterator[Claims]:
    with Claims(tmp_path / "claims") as claims:
        yield claims


def test_parts_of_other_processes_are_counted_while_they_are_stored(job, claims):
    clock, reports = Clock(), list[int]()
    queue = PartQueue(
        job,
        claims,
        start=3,
        is_first=True,
        progress=lambda task, done, total, note="": reports.append(done),
        clock=clock,
    )
    assert queue.claim() == 3
    for part in (0, 4, 9):
        job.parts.write(part, b"")  # by other processes
    clock.now = 14.0
    assert queue.claim() == 5  # after a check of part 4 alone
    clock.now = 15.0
    assert queue.claim() == 6
    assert reports == [0, 2, 5]
    queue.store(3, b"")
    queue.mark_stored(3)
    clock.now = 31.0
    assert queue.claim() == 7
    assert reports == [0, 2, 5, 7, 7]  # an own part is counted once


def test_looks_at_a_slow_folder_take_a_hundredth_of_the_time_and_only_the_first_rank_looks(job, claims, monkeypatch):
    clock, complete = Clock(), Parts.complete

    def slow(self: Parts) -> set[int]:
        looks.append(clock.now)
        clock.now += 2.0
        return complete(self)

    monkeypatch.setattr(Parts, "complete", slow)
    for is_first, expected in ((True, [0.0, 2.0, 210.0, 420.0]), (False, [0.0])):
        looks: list[float] = []
        clock.now = 0.0
        queue = PartQueue(
            job, claims, start=0, is_first=is_first, progress=lambda task, done, total, note="": None, clock=clock
        )
        for _ in range(60):
            clock.now = 10 * (clock.now // 10 + 1)
            queue.claim()
        assert looks == expected
