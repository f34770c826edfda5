"""The result: labels, how sure they are, and what it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from apac.classify.margin import Pairs
from apac.classify.rules.base import Combine
from apac.classify.scores import Scores
from apac.errors import InputError


@dataclass(frozen=True, eq=False)
class Decision:
    """What was decided for N images among K classes. Classes are ranked by `log_scores`, the paper's product of
    softmaxes, or for `combine="sum"` by `probabilities`.

    `stopped` says why an image had no more passes: "fixed", it had the number that was asked for; "certified", its
    label is certain up to the rule's error; "limit", it is not, and no more passes were allowed or would help; "nan",
    the network gave no number in the next passes: it has the label -1, and the scores of the passes before.
    """

    labels: Tensor  # (N,) int64
    log_scores: Tensor  # (N, K) float64, mean log-probability: minus the expected loss J of each class
    probabilities: Tensor  # (N, K) float64, mean probability
    standard_errors: Tensor  # (N, K) float64, of the quantity that ranks the classes
    runners_up: Tensor  # (N,) int64, the second best class; -1 where the label is
    margins: Tensor  # (N,) float64, by how much the label leads in what ranks the classes
    margin_errors: Tensor  # (N,) float64, its standard error; NaN where a class was not among the 16 best at first
    passes: Tensor  # (N,) int64; for class-distinctive deformation, of each set
    clipped: Tensor  # (N,) int64, passes in which the clip of a certified rule was active: its bound is then not sure
    stopped: tuple[str, ...]  # (N,)
    combine: Combine

    def top(self, k: int) -> Tensor:
        """The k best classes of each image, best first, (N, k)."""
        if not 1 <= k <= self.log_scores.shape[1]:
            raise InputError(f"top(k) takes a k between 1 and the {self.log_scores.shape[1]} classes, got {k}.")
        return rank(self.log_scores if self.combine == "product" else self.probabilities)[:, :k]


def settle(scores: Scores, pairs: Pairs, clipped: Tensor, why: str, combine: Combine) -> Decision:
    """The decision of images that have had the same passes and stopped for the same reason."""
    ranking = scores.log_mean if combine == "product" else scores.probability_mean
    images = len(ranking)
    ranked = rank(ranking)
    labels, runners_up = ranked[:, 0], ranked[:, 1]
    best_two = ranking.gather(1, ranked[:, :2])
    margins, errors = best_two[:, 0] - best_two[:, 1], pairs.error(labels, runners_up)
    if why == "nan":
        labels = runners_up = torch.full((images,), -1)
        margins = errors = torch.full_like(ranking[:, 0], torch.nan)
    return Decision(
        labels=labels,
        log_scores=scores.log_mean,
        probabilities=scores.probability_mean,
        standard_errors=scores.log_error if combine == "product" else scores.probability_error,
        runners_up=runners_up,
        margins=margins,
        margin_errors=errors,
        passes=torch.full((images,), scores.passes),
        clipped=clipped,
        stopped=(why,) * images,
        combine=combine,
    )


def gather(decisions: Sequence[Decision], places: Sequence[Tensor]) -> Decision:
    """The decision of all images, of which each of the decisions has those at its places."""
    order = torch.cat(list(places)).argsort()

    def joined(name: str) -> Tensor:
        return torch.cat([getattr(decision, name) for decision in decisions])[order]

    reasons = [why for decision in decisions for why in decision.stopped]
    tensors = [field.name for field in fields(Decision) if field.name not in ("stopped", "combine")]
    return Decision(
        **{name: joined(name) for name in tensors},
        stopped=tuple(reasons[i] for i in order.tolist()),
        combine=decisions[0].combine,
    )


def rank(values: Tensor) -> Tensor:
    """Classes from best to worst, (N, K); of equal ones the lower number first, on every machine."""
    return values.argsort(dim=1, descending=True, stable=True)
