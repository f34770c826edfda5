"""How far chance may move a number that was measured on a sample of images: exact intervals, tests, the bootstrap."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from apac.randomness import generator

LEVEL = 0.95  # of intervals
RESAMPLES = 200  # of the bootstrap: a standard error is then known to 5 %
CHUNK = 2_000_000  # weights in memory at once
HALVINGS = 50  # of the interval 0 … 1


def binomial_interval(count: int, images: int) -> tuple[float, float]:
    """Return the exact 95 % interval (Clopper and Pearson) of a probability, if `count` of `images` were observed.

    >>> [round(bound, 4) for bound in binomial_interval(0, 100)]
    [0.0, 0.0362]
    """
    numbers = torch.arange(images + 1, dtype=torch.float64)
    combinations = math.lgamma(images + 1) - torch.lgamma(numbers + 1) - torch.lgamma(images - numbers + 1)

    def tail(probability: float, counts: slice) -> float:
        terms = combinations + numbers * math.log(probability) + (images - numbers) * math.log1p(-probability)
        return float(terms[counts].exp().sum())

    def bound(counts: slice, *, rising: bool) -> float:
        """Return the probability at which these counts have half of what the interval leaves out."""
        low, high = 0.0, 1.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            small = (tail(middle, counts) < (1 - LEVEL) / 2) == rising
            low, high = (middle, high) if small else (low, middle)
        return (low + high) / 2

    lower = 0.0 if count == 0 else bound(slice(count, None), rising=True)
    upper = 1.0 if count == images else bound(slice(count + 1), rising=False)
    return lower, upper


def mcnemar(corrected: int, corrupted: int) -> float:
    """Return the p-value of the exact two-sided McNemar test: a binomial test with probability 1/2."""
    changed = corrected + corrupted
    tail = combinations = 1
    for k in range(min(corrected, corrupted)):
        combinations = combinations * (changed - k) // (k + 1)
        tail += combinations
    return min(1.0, 2 * tail / (1 << changed))


def resampled_weights(images: int, seed: int) -> Iterator[Tensor]:
    """Yield how often each image occurs in bootstrap samples, (samples, images) float64, in chunks."""
    step = max(1, CHUNK // images)
    for start in range(0, RESAMPLES, step):
        numbers = range(start, min(start + step, RESAMPLES))
        yield torch.stack([_weights(images, generator(seed, "bootstrap", number)) for number in numbers])


def _weights(images: int, random: torch.Generator) -> Tensor:
    drawn = torch.randint(images, (images,), generator=random)
    return torch.bincount(drawn, minlength=images).double()
