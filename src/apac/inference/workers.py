"""A pool of worker threads, one per core, each with a single torch thread.

Threads that share one operation wait for each other at its end, and they wait by spinning: beside another busy process
they slow each other down. Threads that work on separate items do not wait.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from threading import Lock
from typing import TypeVar

import torch

from apac.inference.memory import keep_freed_blocks

Item = TypeVar("Item")
Result = TypeVar("Result")

_setting = Lock()  # one thread at a time changes torch's thread counts


class WorkerPool:
    """The threads that `worker_pool` provides; without an executor, the calling thread."""

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
    """Provide as many worker threads as torch may use in the calling thread, without gradients.

    Where torch may use one thread, as inside a worker, the calling thread does the work itself.

    With `limit_caller`, for callers that compute between the results, the calling thread has one torch thread during
    the block: those that it would wake spin on after their work.
    """
    keep_freed_blocks()
    count = torch.get_num_threads()
    with torch.no_grad():
        if count == 1:
            yield WorkerPool()
            return
        executor, default = _executor(count)
        with torch_threads(1, default) if limit_caller else nullcontext():
            yield WorkerPool(executor, count)


@contextmanager
def torch_threads(count: int, default: int | None = None) -> Iterator[None]:
    """Set the number of torch threads of the calling thread during the block."""
    before = torch.get_num_threads()
    set_own_torch_threads(count, default)
    try:
        yield
    finally:
        set_own_torch_threads(before, default)


def set_own_torch_threads(count: int, default: int | None = None) -> None:
    """Set the number of torch threads of the calling thread and of no other.

    `torch.set_num_threads` also changes the default, which a thread takes over when it first uses torch. Another thread
    restores it: `default`, or what it was.
    """
    torch.get_num_threads()  # takes over the default, if this thread is new, before it sets its own number
    with _setting:
        default = _default_torch_threads() if default is None else default
        torch.set_num_threads(count)
        _keeper().submit(torch.set_num_threads, default).result()


def limit_to_one_torch_thread() -> None:
    """Set the calling thread to one torch thread for the rest of its life."""
    set_own_torch_threads(1)


def _default_torch_threads() -> int:
    with ThreadPoolExecutor(1) as new_thread:
        return new_thread.submit(torch.get_num_threads).result()


@lru_cache(maxsize=1)
def _keeper() -> ThreadPoolExecutor:
    """The thread that restores torch's default number of threads; starting one takes longer than the rest."""
    return ThreadPoolExecutor(1, thread_name_prefix="apac-default")


@lru_cache(maxsize=1)
def _executor(count: int) -> tuple[ThreadPoolExecutor, int]:
    """The workers, and torch's default number of threads, which is read once as only a new thread can read it."""
    with _setting:
        default = _default_torch_threads()
    return ThreadPoolExecutor(count, thread_name_prefix="apac", initializer=limit_to_one_torch_thread), default


def _after_fork() -> None:
    global _setting
    _setting = Lock()
    _executor.cache_clear()
    _keeper.cache_clear()


# A forked process inherits the executors without their threads, and the lock in whatever state it was.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
