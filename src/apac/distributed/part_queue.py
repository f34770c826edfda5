"""Which parts of a job are left, and which of them this process decides next."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from apac.distributed.claims import Claims
from apac.distributed.job import Job
from apac.progress import Progress

MAX_CLAIMED_CHECKED = 64  # parts of other processes that are checked in a row
MIN_INTERVAL = 15.0  # seconds between two refreshes from the whole folder
MAX_SHARE = 0.01  # of the time, for refreshes: a folder may have 200,000 files


class PartQueue:
    """The parts that are not stored yet, as far as this process knows."""

    def __init__(
        self,
        job: Job,
        claims: Claims,
        *,
        start: int,
        is_first: bool,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with the part `start`. The first rank checks the parts and follows those of the others for all."""
        self._job, self._parts, self._claims, self._progress = job, job.parts, claims, progress
        self._refreshes, self._clock, self._next_refresh = is_first, clock, 0.0
        if is_first:
            list(self._parts.discard_damaged())
        self._left: deque[int] = deque((*range(start, self._parts.count), *range(start)))
        self._files_done = 0
        self._own = 0  # parts that this process has claimed and not stored
        self._refresh()

    @property
    def is_complete(self) -> bool:
        return not self._left and not self._own

    def claim(self) -> int | None:
        """Claim the next part that is neither stored nor claimed, or return None if there is none at the moment."""
        if self._refreshes and self._clock() >= self._next_refresh:
            self._refresh()
        claimed_by_others = 0
        while self._left and claimed_by_others < MAX_CLAIMED_CHECKED:
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

    def mark_stored(self, part: int) -> None:
        """Note that an own part is stored."""
        self._own -= 1
        self._add(part)

    def _refresh(self) -> None:
        """Count the parts that other processes have stored since the last refresh."""
        began = self._clock()
        stored = self._parts.complete()
        self._files_done += sum(self._job.files.files_of(part) for part in self._left if part in stored)
        self._left = deque(part for part in self._left if part not in stored)
        ended = self._clock()
        self._next_refresh = ended + max(MIN_INTERVAL, (ended - began) / MAX_SHARE)
        self._report()

    def _add(self, part: int) -> None:
        self._files_done += self._job.files.files_of(part)
        self._report()

    def _report(self) -> None:
        self._progress("deciding", self._files_done, self._job.files.count)
