"""A pool of worker threads, one per core, each with a single torch thread.

Threads that share one operation spin while they wait for each other at its end, which is slow if another process
keeps the cores busy. Threads that work on separate items do not wait.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from threading import Barrier
from typing import TypeVar

import torch

from apac.inference.locks import ProcessLock
from apac.inference.memory import keep_freed_blocks

Item = TypeVar("Item")
Result = TypeVar("Result")

_setting = ProcessLock()  # serializes changes of torch's thread counts


class WorkerPool:
    """The threads of `worker_pool`. Without an executor, the calling thread does the work."""

    def __init__(self, executor: ThreadPoolExecutor | None = None, count: int = 1) -> None:
        self.executor, self.count = executor, count

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result, None, None]:
        """Yield function(item) in the order of the items, with a few items in progress at a time."""
        if self.executor is None:
            yield from map(function, items)
            return

        def run(item: Item) -> Result:
            with torch.no_grad():
                return function(item)

        pending: deque[Future[Result]] = deque()
        try:
            for item in items:
                pending.append(self.executor.submit(run, item))
                if len(pending) >= 2 * self.count:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            # After an error or Ctrl-C no worker starts another item, and none is left running.
            for future in pending:
                future.cancel()
            wait(pending)


@contextmanager
def worker_pool(*, limit_caller: bool = False) -> Iterator[WorkerPool]:
    """Provide as many worker threads as the calling thread has torch threads, without gradients.

    If torch uses a single thread, as inside a worker, the calling thread does the work itself.

    `limit_caller` restricts the calling thread to one torch thread during the block. Use it if the caller computes
    between results: its OpenMP threads would otherwise keep spinning after their work.
    """
    keep_freed_blocks()
    count = torch.get_num_threads()
    with torch.no_grad():
        if count == 1:
            yield WorkerPool()
            return
        with torch_threads(1) if limit_caller else nullcontext():
            yield WorkerPool(_executor(count), count)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Set the number of torch threads of the calling thread during the block."""
    before = torch.get_num_threads()
    with _setting:
        default = _default_torch_threads()
    set_own_torch_threads(count, default)
    try:
        yield
    finally:
        set_own_torch_threads(before, default)


def set_own_torch_threads(count: int, default: int | None = None) -> None:
    """Set the number of torch threads of the calling thread only.

    `torch.set_num_threads` also changes the default, which a thread adopts when it first uses torch. A helper thread
    restores the default to `default`, or to its previous value.
    """
    torch.get_num_threads()  # a new thread adopts the default here, before its own number is set
    with _setting:
        default = _default_torch_threads() if default is None else default
        torch.set_num_threads(count)
        _helper_thread().submit(torch.set_num_threads, default).result()


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def limit_to_one_torch_thread() -> None:
    """Set the calling thread to one torch thread for the rest of its life."""
    set_own_torch_threads(1)


def _default_torch_threads() -> int:
    """Return the number that a new thread adopts, which only a new thread can read."""
    with ThreadPoolExecutor(1) as new_thread:
        return new_thread.submit(torch.get_num_threads).result()


@lru_cache(maxsize=1)
def _helper_thread() -> ThreadPoolExecutor:
    """Return the helper thread that restores torch's default number of threads, cached because starting one is slow."""
    return ThreadPoolExecutor(1, thread_name_prefix="apac-default")


@lru_cache(maxsize=1)
def _executor(count: int) -> ThreadPoolExecutor:
    """Return the workers, all of which have set their number of torch threads.

    While one sets it, a new thread of the caller would adopt it, see `set_own_torch_threads`.
    """
    executor = ThreadPoolExecutor(count, thread_name_prefix="apac", initializer=limit_to_one_torch_thread)
    all_started = Barrier(count)
    list(executor.map(lambda _: all_started.wait(), range(count)))
    return executor


def _after_fork() -> None:
    """Forget the threads, which have stayed in the other process.

    An operation of torch on several threads would wait for them forever.
    """
    _executor.cache_clear()
    _helper_thread.cache_clear()
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
