"""The engine: one thread that decides the images of all requests together."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from apac.classify.classifier import Classifier
from apac.classify.rules.fixed import FixedPasses
from apac.classify.session import Session, Settings, Update
from apac.serve.refusal import unavailable

UNDER_WAY = 128  # images that share a round: enough to keep the cores busy, few enough for short rounds
FAILED = "the model failed to decide the images."


@dataclass(eq=False)
class Job:
    """The images of one request."""

    images: Tensor  # (n, C, H, W)
    settings: Settings
    watched: bool
    loop: asyncio.AbstractEventLoop
    updates: asyncio.Queue[tuple[int, Update] | None]  # (image, update); None if the engine failed
    remaining: int
    waiting: deque[int]  # images that are not under way yet
    held: list[tuple[int, Update]] = field(default_factory=list)
    canceled: bool = False

    def deliver(self, index: int, update: Update) -> None:
        """Pass an update to the event loop; those of a job that is not watched all at once, when it is done."""
        self.remaining -= update.is_final
        self.held.append((index, update))
        if self.watched or not self.remaining:
            held, self.held = self.held, []
            self._call(*held)

    def fail(self) -> None:
        self._call(None)

    def _call(self, *items: tuple[int, Update] | None) -> None:
        if self.canceled or self.loop.is_closed():
            return

        def put() -> None:
            for item in items:
                self.updates.put_nowait(item)

        self.loop.call_soon_threadsafe(put)


class Engine:
    """Decides images in a thread of its own. At most `queue` images wait; a request beyond that is refused."""

    def __init__(self, classifier: Classifier, image_shape: tuple[int, int, int], queue: int) -> None:
        self.classifier, self.image_shape, self.limit = classifier, image_shape, queue
        self.ready = threading.Event()  # the network is prepared and one decision was made
        self._waiting: deque[Job] = deque()  # the next to be served first
        self._under_way: dict[int, tuple[Job, int]] = {}  # by ticket
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="apac-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current round, and wait for it."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    @property
    def waiting(self) -> int:
        return sum(len(job.waiting) for job in tuple(self._waiting))

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    @asynccontextmanager
    async def deciding(
        self, images: Tensor, settings: Settings, *, watched: bool = False
    ) -> AsyncIterator[asyncio.Queue[tuple[int, Update] | None]]:
        """Yield the queue of updates of images (n, C, H, W). The images that are undecided at the exit leave."""
        if not self.ready.is_set():
            raise unavailable("the model is not ready yet; try again.", retry_after=2)
        loop = asyncio.get_running_loop()
        job = Job(images, settings, watched, loop, asyncio.Queue(), len(images), deque(range(len(images))))
        with self._changed:
            if self._stopping or self.waiting + len(images) > self.limit:
                raise unavailable("the queue is full; try again.")
            self._waiting.append(job)
            self._changed.notify()
        try:
            yield job.updates
        finally:
            if job.remaining:
                with self._changed:
                    job.canceled = True
                    self._waiting = deque(other for other in self._waiting if other is not job)

    async def decide(self, images: Tensor, settings: Settings) -> list[Update]:
        """Return the final updates of images (n, C, H, W), in their order."""
        results: dict[int, Update] = {}
        async with self.deciding(images, settings) as updates:
            while len(results) < len(images):
                item = await updates.get()
                if item is None:
                    raise unavailable(FAILED)
                results[item[0]] = item[1]
        return [results[index] for index in range(len(images))]

    def _run(self) -> None:
        while not self._stopping:
            try:
                with Session.open(self.classifier, self.image_shape) as session:
                    self._decide_one(session)
                    self.ready.set()
                    while self._take(session):
                        for update in session.advance():
                            self._deliver(update)
            except Exception:
                logging.getLogger("apac.serve").exception("the engine failed and starts again")
                self._fail_all()
                with self._changed:  # not in a busy loop, if it fails again at once
                    self._changed.wait_for(lambda: self._stopping, timeout=1.0)

    def _decide_one(self, session: Session) -> None:
        """Make a decision, so that the first request does not wait for compiled kernels and for memory."""
        settings = Settings(FixedPasses(32), seed=self.classifier.seed, combine=self.classifier.combine)
        session.join(torch.zeros(self.image_shape), settings)
        while len(session):
            list(session.advance())

    def _take(self, session: Session) -> bool:
        """Move waiting images to the session; wait if there is nothing to do. Returns False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._under_way or self._stopping)
            for ticket in [ticket for ticket, (job, _) in self._under_way.items() if job.canceled]:
                session.leave(ticket)
                del self._under_way[ticket]
            self._fill(session)
            return not self._stopping

    def _fill(self, session: Session) -> None:
        """Let images of all jobs join in turn, until the places are taken and every job has its share of them.

        A job that came when others had taken all places gets further ones: it does not wait for thousands of passes.
        """
        taken = Counter(job for job, _ in self._under_way.values())
        share = max(1, UNDER_WAY // max(1, len({*taken, *self._waiting})))
        satisfied = 0  # jobs in a row that have enough places
        while satisfied < len(self._waiting):
            job = self._waiting[0]
            if len(self._under_way) < UNDER_WAY or taken[job] < share:
                index = job.waiting[0]
                ticket = session.join(job.images[index], job.settings, watched=job.watched)
                self._under_way[ticket] = job, index
                job.waiting.popleft()
                taken[job] += 1
                satisfied = 0
            else:
                satisfied += 1
            self._waiting.popleft()
            if job.waiting:
                self._waiting.append(job)

    def _deliver(self, update: Update) -> None:
        place = self._under_way.pop(update.ticket) if update.is_final else self._under_way[update.ticket]
        job, index = place
        job.deliver(index, update)

    def _fail_all(self) -> None:
        self.ready.clear()
        with self._changed:
            jobs = {*(job for job, _ in self._under_way.values()), *self._waiting}
            self._waiting.clear()
            self._under_way.clear()
        for job in jobs:
            job.fail()
