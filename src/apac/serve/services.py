"""What the routes share: the models, the limits, threads for decoding, and deadlines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from typing import Any, TypeVar

from fastapi import Request

from apac import limits
from apac.classify.decision import Decision
from apac.inference.workers import limit_to_one_torch_thread
from apac.serve.guard import RECORD, ClientLeft
from apac.serve.limits import Limits
from apac.serve.metrics import Metrics
from apac.serve.model import Model
from apac.serve.refusal import Refusal, unavailable

Result = TypeVar("Result")


@dataclass
class Services:
    """What the routes share."""

    models: dict[str, Model]
    limits: Limits
    metrics: Metrics
    draining: bool = False  # the server ends soon and takes no new clients
    before_listening: Event | None = None  # of a worker, which listens and sets it when it is ready: others can answer
    decoders: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(limits.DECODERS, "apac-decode", limit_to_one_torch_thread)
    )
    free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(limits.DECODERS))  # decoders
    futures: set[Future[Any]] = field(default_factory=set)

    def close(self) -> None:
        """Take no more work, without waiting for what is under way: its clients have left."""
        self.decoders.shutdown(wait=False, cancel_futures=True)

    @property
    def is_decoding(self) -> bool:
        return any(future.running() for future in tuple(self.futures))

    def model(self, name: str) -> Model:
        if name not in self.models:
            raise Refusal(404, "there is no model of that name; /v2 lists the models.")
        return self.models[name]

    @property
    def is_ready(self) -> bool:
        return not self.draining and all(model.engine.ready.is_set() for model in self.models.values())

    async def in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Return the result of the function, called in a thread as soon as one is free.

        A request that is given up waits no longer and holds no memory; a thread is free when its function has returned.
        """
        loop = asyncio.get_running_loop()
        await self.free.acquire()
        future = self.decoders.submit(function, *arguments)
        self.futures.add(future)

        def done(future: Future[Result]) -> None:
            self.futures.discard(future)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self.free.release)

        future.add_done_callback(done)
        return await asyncio.wrap_future(future)

    async def decode(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """`in_thread` for a function whose last argument is an event: it is set when the request is given up."""
        canceled = threading.Event()
        try:
            return await self.in_thread(function, *arguments, canceled)
        finally:
            canceled.set()

    def deadline(self) -> float:
        """Return the time at which a request that begins now is given up."""
        return asyncio.get_running_loop().time() + self.limits.seconds

    async def in_time(self, request: Request, deadline: float, work: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of the work, unless it takes too long or the client leaves: then it is canceled."""
        remaining = deadline - asyncio.get_running_loop().time()
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait({task, gone}, timeout=remaining, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise ClientLeft if gone.done() else self.too_slow()
        finally:
            task.cancel()
            gone.cancel()

    def too_slow(self) -> Refusal:
        return unavailable(f"the decision took longer than {self.limits.seconds:g} s; try again, or with fewer passes.")

    def count(self, request: Request, model: Model, decision: Decision) -> None:
        self.metrics.decided(model, decision)
        request.scope[RECORD] |= {
            "model": model.name,
            "images": len(decision.labels),
            "passes": int(decision.passes.sum()),
            "settled": decision.stopped.count("certified"),
        }


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
