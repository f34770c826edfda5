"""Which parts of a job are left, and which of them this process decides next."""

from __future__ import annotations

from collections import deque

from apac.distributed.claims import Claims
from apac.distributed.job import Job
from apac.progress import Progress

CLAIMED_PER_LOOK = 64  # parts of other processes that are looked at in a row


class Board:
    """The parts that are not stored yet, as far as this process knows."""

    def __init__(self, job: Job, claims: Claims, *, first: int, check: bool, progress: Progress) -> None:
        self._job, self._parts, self._claims, self._progress = job, job.parts, claims, progress
        if check:
            list(self._parts.discard_damaged())
        stored = self._parts.complete()
        numbers = (*range(first, self._parts.count), *range(first))
        self._left: deque[int] = deque(part for part in numbers if part not in stored)
        self._files_done = sum(map(job.files.files_of, stored))
        self._own = 0  # parts that this process has claimed and not stored
        self._report()

    @property
    def is_complete(self) -> bool:
        return not self._left and not self._own

    def claim(self) -> int | None:
        """Claim the next part that is neither stored nor claimed, or return None if there is none at the moment."""
        claimed_by_others = 0
        while self._left and claimed_by_others < CLAIMED_PER_LOOK:
            part = self._left.popleft()
            if not self._parts.is_complete(part):
                if not self._claims.take(str(part)):
                    self._left.append(part)
                    claimed_by_others += 1
                    if claimed_by_others >= len(self._left):
                        break
                    continue
                if not self._parts.is_complete(part):  # not stored between the two
                    self._own += 1
                    return part
                self._claims.release(str(part))
            self._add(part)
        return None

    def store(self, part: int, content: bytes) -> None:
        self._parts.write(part, content)
        self._claims.release(str(part))

    def stored(self, part: int) -> None:
        """Note that an own part is stored."""
        self._own -= 1
        self._add(part)

    def _add(self, part: int) -> None:
        self._files_done += self._job.files.files_of(part)
        self._report()

    def _report(self) -> None:
        self._progress("deciding", self._files_done, self._job.files.count)
