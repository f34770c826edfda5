"""The result: labels, scores, uncertainty, passes used and why each image stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from apac.classify.combine import COMBINATIONS, Combine
from apac.classify.margin import MarginMoments
from apac.classify.scores import Scores, rank
from apac.errors import InputError


@dataclass(frozen=True, eq=False)
class Decision:
    """The decisions for N images among K classes.

    Classes are ranked by `log_scores`, the paper's product of softmaxes, or by `mean_probabilities` if `combine` is
    "sum".

    `stopped` is the reason why an image got no more passes:

    - "fixed": it got the requested number;
    - "certified": its label is settled, that is, more passes would not change it, up to the error of the rule. That
      says nothing about whether it is right;
    - "exhaustive": it got one pass for each value of the deformation;
    - "limit": it is not settled, and the rule allows no more passes or more passes cannot help;
    - "nan": the network returned NaN or an infinite logit. The label is -1, and the scores are those of the passes
      before the rule's last update.

    >>> import apac, torch
    >>> classifier = apac.Classifier(lambda images: images.flatten(1), apac.Flip(), apac.FixedPasses(4))
    >>> decision = classifier.decide(torch.tensor([[[[0.0, 9.0], [1.0, 9.0]]]]))
    >>> decision.labels, decision.stopped
    (tensor([3]), ('fixed',))
    >>> decision.top(2)
    tensor([[3, 1]])
    """

    labels: Tensor  # (N,) int64
    log_scores: Tensor  # (N, K) float64, mean log-probability: minus the expected loss J of each class
    mean_probabilities: Tensor  # (N, K) float64, mean probability over the passes
    standard_errors: Tensor  # (N, K) float64, of the quantity that ranks the classes
    runners_up: Tensor  # (N,) int64, the second best class; -1 where the label is -1
    margins: Tensor  # (N,) float64, difference between the best and the second best class in that quantity
    margin_errors: Tensor  # (N,) float64, their standard errors; NaN if unknown, see `margin.py`
    passes: Tensor  # (N,) int64; for a class-distinctive deformation, per set
    clipped: Tensor  # (N,) int64, passes in which a certified rule clipped evidence: its bound may then not hold
    stopped: tuple[str, ...]  # (N,)
    combine: Combine
    temperature: float = 1.0  # of `probabilities`

    @property
    def ranking(self) -> Tensor:
        """The values that rank the classes, (N, K): `log_scores` or `mean_probabilities`."""
        return COMBINATIONS[self.combine].select(self.log_scores, self.mean_probabilities)

    @property
    def log_probabilities(self) -> Tensor:
        """The logarithms of `probabilities`, (N, K), which do not underflow."""
        scores = COMBINATIONS[self.combine].select(self.log_scores, self.mean_probabilities.log())
        return (scores / self.temperature).log_softmax(dim=1)

    @property
    def probabilities(self) -> Tensor:
        """The probability of each class, (N, K): the normalized geometric mean of the softmaxes of the passes.

        For `combine="sum"` it is their arithmetic mean. Either is sharpened or flattened by the `temperature` of the
        classifier, which `apac.tune` fits on held-out images. Rows of NaN belong to images that are not decided.

        >>> import apac, torch
        >>> classifier = apac.Classifier(lambda images: images.flatten(1), apac.Compose(), apac.FixedPasses(4))
        >>> classifier.decide(torch.tensor([[[[0.25, 0.75]]]]).log()).probabilities
        tensor([[0.2500, 0.7500]], dtype=torch.float64)
        """
        return self.log_probabilities.exp()

    def top(self, k: int) -> Tensor:
        """Return the k best classes of each image, best first, (N, k)."""
        if not 1 <= k <= self.log_scores.shape[1]:
            raise InputError(f"k must be between 1 and the {self.log_scores.shape[1]} classes, got {k}.")
        return rank(self.ranking)[:, :k]

    def without_errors(self) -> Decision:
        """Return the decision with standard errors of 0, for passes that are not a sample."""
        decided = self.labels >= 0
        errors = torch.where(decided[:, None], 0.0, self.standard_errors)
        return replace(self, standard_errors=errors, margin_errors=torch.where(decided, 0.0, self.margin_errors))

    @staticmethod
    def from_scores(
        scores: Scores, moments: MarginMoments, clipped: Tensor, stopped: str, combine: Combine
    ) -> Decision:
        """Decide images that had the same passes and stopped for the same reason."""
        means = scores.mean(combine)  # (n, K)
        ranked = rank(means)
        labels, runners_up = ranked[:, 0], ranked[:, 1]
        best_two = means.gather(1, ranked[:, :2])
        margins, margin_errors = best_two[:, 0] - best_two[:, 1], moments.error(labels, runners_up)
        if stopped == "nan":
            labels = runners_up = torch.full_like(labels, -1)
            margins = margin_errors = torch.full_like(margins, torch.nan)
        return Decision(
            labels=labels,
            log_scores=scores.log_mean,
            mean_probabilities=scores.probability_mean,
            standard_errors=scores.standard_error(combine),
            runners_up=runners_up,
            margins=margins,
            margin_errors=margin_errors,
            passes=torch.full_like(labels, scores.passes),
            clipped=clipped,
            stopped=(stopped,) * len(means),
            combine=combine,
        )

    @staticmethod
    def empty(classes: int, combine: Combine) -> Decision:
        """Return the decisions for no images."""
        scores, clipped = Scores.zero(0, classes), torch.zeros(0, dtype=torch.int64)
        return Decision.from_scores(scores, MarginMoments.zero(scores.log_sum), clipped, "", combine)

    @staticmethod
    def concatenate(decisions: Sequence[Decision]) -> Decision:
        """Return the decisions for the images of all `decisions`, in their order."""
        tensors: dict[str, Any] = {
            name: torch.cat([getattr(decision, name) for decision in decisions]) for name in TENSORS
        }
        stopped = tuple(reason for decision in decisions for reason in decision.stopped)
        return replace(decisions[0], **tensors, stopped=stopped)

    def select(self, indices: Tensor) -> Decision:
        """Return the decisions for the images at `indices`, in that order."""
        tensors: dict[str, Any] = {name: getattr(self, name)[indices] for name in TENSORS}
        return replace(self, **tensors, stopped=tuple(self.stopped[i] for i in indices.tolist()))


TENSORS = tuple(field.name for field in fields(Decision) if field.name not in ("stopped", "combine", "temperature"))
