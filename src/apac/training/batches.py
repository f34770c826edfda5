"""The virtual samples of each step, made while the network trains on those before where a core is free for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from apac.inference.workers import limit_to_one_torch_thread

Batch = TypeVar("Batch")


def batches(make: Callable[[int], Batch], start: int, stop: int, *, ahead: bool | None = None) -> Iterator[Batch]:
    """make(step) of the steps start … stop − 1, in order. With `ahead`, each is made in another thread while the one
    before is in use; what comes out is the same.

    By default ahead where the machine has more cores than torch uses. Where torch uses them all, a further thread makes
    its threads wait for each other: `apac bench` shows what that costs.
    """
    count = torch.get_num_threads()
    if start >= stop or not (_cores() > count if ahead is None else ahead):
        yield from map(make, range(start, stop))
        return
    with ThreadPoolExecutor(1, thread_name_prefix="apac") as one:
        one.submit(limit_to_one_torch_thread).result()
        torch.set_num_threads(count)  # for threads to come
        following = one.submit(make, start)
        for step in range(start, stop):
            batch = following.result()
            if step + 1 < stop:
                following = one.submit(make, step + 1)
            yield batch


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
