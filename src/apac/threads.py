"""Work on all cores: one thread a core, each with the single torch thread that is its own.

Threads that share an operation wait for each other at its end, and do so by spinning: beside anything else that is
busy they stand still together. Threads with work of their own do not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from threading import Barrier, Lock
from typing import TypeVar

import torch

from apac.memory import keep_freed_blocks

Item = TypeVar("Item")
Result = TypeVar("Result")


class Crew:
    """The threads of a `crew`."""

    def __init__(self, count: int) -> None:
        self.count = count

    def each(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """function of each item, in order."""
        waiting = list(items)
        if self.count == 1 or len(waiting) < 2:
            return [function(item) for item in waiting]
        return _share(function, waiting, self.count)


@contextmanager
def crew() -> Iterator[Crew]:
    """As many threads as torch may use here, without gradients. Where it may use one, as in a thread of a crew, that is
    the calling thread.

    The calling thread itself keeps to one torch thread for the while: the others that it would wake spin on.
    """
    keep_freed_blocks()
    count = torch.get_num_threads()
    pool = _pool(count) if count > 1 else None
    with torch.no_grad():
        if pool is None:
            yield Crew(1)
            return
        torch.set_num_threads(1)
        try:
            yield Crew(count)
        finally:
            torch.set_num_threads(count)


def _share(function: Callable[[Item], Result], items: list[Item], count: int) -> list[Result]:
    results: dict[int, Result] = {}
    numbered, lock, stopped = iter(enumerate(items)), Lock(), False

    def work() -> None:
        nonlocal stopped
        with torch.no_grad():
            while not stopped:
                with lock:
                    number, item = next(numbered, (None, None))
                if number is None:
                    return
                try:
                    results[number] = function(item)  # type: ignore[arg-type]
                except BaseException:
                    stopped = True
                    raise

    futures = [_pool(count).submit(work) for _ in range(min(count, len(items)))]
    try:
        for future in futures:
            future.result()
    finally:
        stopped = True  # after an error or Ctrl-C nobody begins another item
    return [results[number] for number in range(len(items))]


@lru_cache(maxsize=1)
def _pool(count: int) -> ThreadPoolExecutor:
    # All threads meet once at the start, so that each has made its setting when torch's global one is put back.
    met = Barrier(count + 1)

    def begin() -> None:
        use_one_torch_thread()
        met.wait()

    pool = ThreadPoolExecutor(count, thread_name_prefix="apac", initializer=begin)
    for _ in range(count):
        pool.submit(int)
    met.wait()
    torch.set_num_threads(count)
    return pool


def use_one_torch_thread() -> None:
    """For the calling thread, a new one. Whoever calls this puts torch's global number back, which it changes too."""
    torch.get_num_threads()  # when it first asks, a thread takes torch's global number: before it sets its own
    torch.set_num_threads(1)


# A forked process inherits the pool without its threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
