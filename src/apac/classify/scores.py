"""Running sums of what the passes said; add, merge; pure."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Scores:
    """Sums over passes for N images and K classes, in float64.

    Logarithms are summed, so 16,384 probabilities of 1e-30 neither underflow nor lose digits. The sums of the
    probabilities themselves serve the rule that the paper compares with, "summation instead of product".
    """

    passes: int
    log_sum: Tensor  # (N, K), of log-probabilities
    log_squares: Tensor  # (N, K), of their squares
    probability_sum: Tensor  # (N, K)
    probability_squares: Tensor  # (N, K)

    @staticmethod
    def zero(images: int, classes: int) -> Scores:
        return Scores(0, *(torch.zeros(images, classes, dtype=torch.float64) for _ in range(4)))

    def add(self, log_probabilities: Tensor) -> Scores:
        """The scores after one more pass, (N, K), or some, (passes, N, K)."""
        log = log_probabilities.double()
        log = log[None] if log.ndim == 2 else log
        probability = log.exp()
        # One after the other: otherwise the last digit of a sum depends on the image's place.
        sums = (each.cumsum(dim=0)[-1] for each in (log, log.square(), probability, probability.square()))
        return self.merge(Scores(len(log), *sums))

    def merge(self, other: Scores) -> Scores:
        """The scores of the passes of both, as if they had been added one by one."""
        return Scores(
            self.passes + other.passes,
            self.log_sum + other.log_sum,
            self.log_squares + other.log_squares,
            self.probability_sum + other.probability_sum,
            self.probability_squares + other.probability_squares,
        )

    @property
    def log_mean(self) -> Tensor:
        """Mean log-probability: minus the estimate of the expected loss J of each class."""
        return self.log_sum / self.passes

    @property
    def probability_mean(self) -> Tensor:
        return self.probability_sum / self.passes

    @property
    def log_error(self) -> Tensor:
        """Standard error of `log_mean`; NaN after a single pass, which tells nothing of the spread."""
        return _standard_error(self.passes, self.log_sum, self.log_squares)

    @property
    def probability_error(self) -> Tensor:
        return _standard_error(self.passes, self.probability_sum, self.probability_squares)


def _standard_error(n: int, total: Tensor, squares: Tensor) -> Tensor:
    if n < 2:
        return torch.full_like(total, torch.nan)
    variance = (squares - total.square() / n) / (n - 1)
    return (variance.clamp(min=0) / n).sqrt()
