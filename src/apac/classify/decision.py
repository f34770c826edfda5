"""The result: labels, and how sure they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from apac.classify.scores import Scores
from apac.errors import InputError

Combine = Literal["product", "sum"]


@dataclass(frozen=True, eq=False)
class Decision:
    """What was decided for N images among K classes. Classes are ranked by `log_scores`, the paper's product of
    softmaxes, or for `combine="sum"` by `probabilities`."""

    labels: Tensor  # (N,) int64
    log_scores: Tensor  # (N, K) float64, mean log-probability: minus the expected loss J of each class
    probabilities: Tensor  # (N, K) float64, mean probability
    standard_errors: Tensor  # (N, K) float64, of the quantity that ranks the classes
    passes: Tensor  # (N,) int64; for class-distinctive deformation, of each set
    stopped: tuple[str, ...]  # (N,) why: "fixed"
    combine: Combine

    def top(self, k: int) -> Tensor:
        """The k best classes of each image, best first, (N, k)."""
        if not 1 <= k <= self.log_scores.shape[1]:
            raise InputError(f"top(k) takes a k between 1 and the {self.log_scores.shape[1]} classes, got {k}.")
        return rank(self.log_scores if self.combine == "product" else self.probabilities)[:, :k]


def decide_fixed(scores: Scores, combine: Combine) -> Decision:
    """The decision when every image has had the same passes."""
    images = len(scores.log_sum)
    ranking = scores.log_mean if combine == "product" else scores.probability_mean
    return Decision(
        labels=rank(ranking)[:, 0],
        log_scores=scores.log_mean,
        probabilities=scores.probability_mean,
        standard_errors=scores.log_error if combine == "product" else scores.probability_error,
        passes=torch.full((images,), scores.passes),
        stopped=("fixed",) * images,
        combine=combine,
    )


def rank(values: Tensor) -> Tensor:
    """Classes from best to worst, (N, K); of equal ones the lower number first, on every machine."""
    return values.argsort(dim=1, descending=True, stable=True)
