"""The batches of consecutive training steps, prefetched if a core is free."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from apac.inference.workers import cores, limit_to_one_torch_thread
from apac.randomness import generator

Batch = TypeVar("Batch")


def batches(
    make: Callable[[int], Batch], start: int, stop: int, *, prefetch: bool | None = None
) -> Generator[Batch, None, None]:
    """Yield make(step) for the steps start … stop − 1, in order.

    With `prefetch`, another thread prepares the next batch while the caller uses the current one; the batches are the
    same. The default is to prefetch if the machine has more cores than torch uses. If torch uses all cores, an
    additional thread slows torch's threads down: `apac bench` measures the cost.
    """
    count = torch.get_num_threads()
    if start >= stop or not (cores() > count if prefetch is None else prefetch):
        yield from map(make, range(start, stop))
        return
    with ThreadPoolExecutor(1, thread_name_prefix="apac") as worker:
        worker.submit(limit_to_one_torch_thread).result()
        upcoming = worker.submit(make, start)
        for step in range(start, stop):
            batch = upcoming.result()
            if step + 1 < stop:
                upcoming = worker.submit(make, step + 1)
            yield batch


def draw(count: int, n: int, cumulative_weights: Tensor | None, *, generator: torch.Generator) -> Tensor:
    """Draw indices below n with replacement, uniformly or in proportion to weights, given as their cumulative sum (n,).

    An index with weight 0 is not drawn.
    """
    if cumulative_weights is None:
        return torch.randint(n, (count,), generator=generator)
    points = torch.rand(count, dtype=torch.float64, generator=generator) * cumulative_weights[-1]
    return torch.searchsorted(cumulative_weights, points, right=True)


def shuffled(steps: range, batch_size: int, n: int, seed: int) -> Iterator[Tensor]:
    """Yield the indices of the batches of these steps, cut from one random order of all n images after the other.

    A batch at the end of an order has its other images from the beginning of the next one. An order depends on the seed
    and on its number only, so that training can be resumed at any step.
    """
    number, order = -1, torch.empty(0, dtype=torch.int64)
    for step in steps:
        first, parts = step * batch_size, []
        while (missing := (step + 1) * batch_size - first) > 0:
            if first // n != number:
                number = first // n
                order = torch.randperm(n, generator=generator(seed, "training order", number))
            parts.append(order[first % n :][:missing])
            first += len(parts[-1])
        yield torch.cat(parts)
