"""Sums over passes: pure values that add and merge."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from apac.classify.combine import COMBINATIONS, Combine


@dataclass(frozen=True, eq=False)
class Scores:
    """Sums over passes for N images and K classes, in float64.

    Logarithms are summed, so 16,384 probabilities of 1e-30 neither underflow nor lose digits. The sums of the
    probabilities themselves serve `combine="sum"`.

    >>> import torch
    >>> one_pass = torch.tensor([[0.25, 0.75]]).log()
    >>> first, second = Scores.zero(1, 2).add(one_pass), Scores.zero(1, 2).add(one_pass)
    >>> first.merge(second).passes
    2
    """

    passes: int
    log_sum: Tensor  # (N, K), of log-probabilities
    log_squares: Tensor  # (N, K), of their squares
    probability_sum: Tensor  # (N, K)
    probability_squares: Tensor  # (N, K)

    @staticmethod
    def zero(images: int, classes: int) -> Scores:
        """Return the scores before the first pass."""
        return Scores(0, *(torch.zeros(images, classes, dtype=torch.float64) for _ in range(4)))

    def add(self, log_probabilities: Tensor) -> Scores:
        """Return the scores after one more pass, (N, K), or several, (passes, N, K)."""
        log = log_probabilities.double()
        log = log[None] if log.ndim == 2 else log
        probability = log.exp()
        # cumsum adds pass by pass. sum() may reorder the additions depending on an image's position in the batch.
        sums = (values.cumsum(dim=0)[-1] for values in (log, log.square(), probability, probability.square()))
        return self.merge(Scores(len(log), *sums))

    def merge(self, other: Scores) -> Scores:
        """Return the scores of both sets of passes, as if they had been added one by one."""
        return Scores(
            self.passes + other.passes,
            self.log_sum + other.log_sum,
            self.log_squares + other.log_squares,
            self.probability_sum + other.probability_sum,
            self.probability_squares + other.probability_squares,
        )

    def mean(self, combine: Combine) -> Tensor:
        """Return the means that rank the classes, (N, K)."""
        return COMBINATIONS[combine].select(self.log_mean, self.probability_mean)

    def standard_error(self, combine: Combine) -> Tensor:
        """Return the standard errors of `mean(combine)`, (N, K)."""
        return COMBINATIONS[combine].select(self.log_error, self.probability_error)

    @property
    def log_mean(self) -> Tensor:
        """Mean log-probability, (N, K): minus the estimate of the expected loss J of each class."""
        return self.log_sum / self.passes

    @property
    def probability_mean(self) -> Tensor:
        """Mean probability, (N, K)."""
        return self.probability_sum / self.passes

    @property
    def log_error(self) -> Tensor:
        """Standard error of `log_mean`, (N, K); NaN after a single pass, which has no spread."""
        return _standard_error(self.passes, self.log_sum, self.log_squares)

    @property
    def probability_error(self) -> Tensor:
        """Standard error of `probability_mean`, (N, K); NaN after a single pass."""
        return _standard_error(self.passes, self.probability_sum, self.probability_squares)


def sum_passes(
    passes: Iterable[Tensor], scores: Scores | None = None, *, batch_size: int = 1
) -> Iterator[tuple[Tensor, Scores]]:
    """Add passes (N, K) to scores, `batch_size` at a time.

    Yields the log-probabilities of each batch, (passes, N, K), with the scores that include it.
    """
    remaining = iter(passes)
    while batch := list(islice(remaining, batch_size)):
        log_probabilities = torch.stack(batch)
        # Before the first pass the number of classes is unknown.
        if scores is None or not scores.passes:
            scores = Scores.zero(*log_probabilities.shape[1:])
        scores = scores.add(log_probabilities)
        yield log_probabilities, scores


def logarithms(combine: Combine, mean_logarithms: Tensor, mean_probabilities: Tensor) -> Tensor:
    """Return the scores (N, K) whose softmax is the probability of each class."""
    smallest = torch.finfo(torch.float64).tiny  # the mean of probabilities may underflow
    return COMBINATIONS[combine].select(mean_logarithms, mean_probabilities.clamp(min=smallest).log())


def rank(values: Tensor) -> Tensor:
    """Return the classes from best to worst, (N, K). Ties go to the lower class index, on every machine."""
    return values.argsort(dim=1, descending=True, stable=True)


def _standard_error(n: int, total: Tensor, squares: Tensor) -> Tensor:
    if n < 2:
        return torch.full_like(total, torch.nan)
    variance = (squares - total.square() / n) / (n - 1)
    return (variance.clamp(min=0) / n).sqrt()
