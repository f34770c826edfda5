"""Decisions made by hand, for what shows them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import apac


def made(
    stopped: Sequence[str],
    *,
    labels: Sequence[int] | int = 0,
    runners_up: Sequence[int] | int = 1,
    margins: Sequence[float] | float = 1.0,
    margin_errors: Sequence[float] | float = 0.1,
    passes: Sequence[int] | int = 32,
    clipped: Sequence[int] | int = 0,
    log_scores: Sequence[Sequence[float]] = ((-0.5, -1.5, -4.0),),
    combine: str = "product",
) -> apac.Decision:
    """A decision of as many images as there are reasons; one value for a field serves all of them."""
    images = len(stopped)

    def whole(values: Sequence[int] | int) -> Tensor:
        return torch.tensor(values, dtype=torch.int64).expand(images).clone()

    def real(values: Sequence[float] | float) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).expand(images).clone()

    scores = torch.tensor(log_scores, dtype=torch.float64)
    scores = scores.expand(images, scores.shape[1]).clone()
    return apac.Decision(
        labels=whole(labels),
        log_scores=scores,
        probabilities=scores.exp(),
        standard_errors=torch.full_like(scores, 0.05),
        runners_up=whole(runners_up),
        margins=real(margins),
        margin_errors=real(margin_errors),
        passes=whole(passes),
        clipped=whole(clipped),
        stopped=tuple(stopped),
        combine=combine,
    )
