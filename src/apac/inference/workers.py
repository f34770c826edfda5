"""Work on all cores: one thread a core, each with the single torch thread that is its own.

Threads that share an operation wait for each other at its end, and do so by spinning: beside anything else that is
busy they stand still together. Threads with work of their own do not.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import lru_cache
from threading import Barrier
from typing import TypeVar

import torch

from apac.inference.memory import keep_freed_blocks

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerPool:
    """The threads of a `worker_pool`."""

    def __init__(self, pool: ThreadPoolExecutor | None = None, count: int = 1) -> None:
        self.pool, self.count = pool, count

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """function of each item, in order. Items are asked for, and results kept, a few at a time."""
        if self.pool is None:
            yield from map(function, items)
            return

        def run(item: Item) -> Result:
            with torch.no_grad():
                return function(item)

        under_way: deque[Future[Result]] = deque()
        try:
            for item in items:
                under_way.append(self.pool.submit(run, item))
                if len(under_way) >= 2 * self.count:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            # After an error or Ctrl-C nobody begins another item, and nobody is left at work.
            for future in under_way:
                future.cancel()
            wait(under_way)


@contextmanager
def worker_pool() -> Iterator[WorkerPool]:
    """As many threads as torch may use here, without gradients. Where it may use one, as in a thread of a worker_pool, that is
    the calling thread.

    The calling thread itself keeps to one torch thread for the while: the others that it would wake spin on.
    """
    keep_freed_blocks()
    count = torch.get_num_threads()
    pool = _pool(count) if count > 1 else None
    with torch.no_grad():
        if pool is None:
            yield WorkerPool()
            return
        torch.set_num_threads(1)
        try:
            yield WorkerPool(pool, count)
        finally:
            torch.set_num_threads(count)


@lru_cache(maxsize=1)
def _pool(count: int) -> ThreadPoolExecutor:
    # All threads meet once at the start, so that each has made its setting when torch's global one is put back.
    met = Barrier(count + 1)

    def begin() -> None:
        limit_to_one_torch_thread()
        met.wait()

    pool = ThreadPoolExecutor(count, thread_name_prefix="apac", initializer=begin)
    for _ in range(count):
        pool.submit(int)
    met.wait()
    torch.set_num_threads(count)
    return pool


def limit_to_one_torch_thread() -> None:
    """For the calling thread, a new one. Whoever calls this puts torch's global number back, which it changes too."""
    torch.get_num_threads()  # when it first asks, a thread takes torch's global number: before it sets its own
    torch.set_num_threads(1)


# A forked process inherits the pool without its threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
