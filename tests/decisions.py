"""Decisions with prescribed values, and comparison of decisions with scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import apac
from apac.classify.combine import Combine


def make_decision(
    stopped: Sequence[str],
    *,
    labels: Sequence[int] | int = 0,
    runners_up: Sequence[int] | int = 1,
    margins: Sequence[float] | float = 1.0,
    margin_errors: Sequence[float] | float = 0.1,
    passes: Sequence[int] | int = 32,
    clipped: Sequence[int] | int = 0,
    log_scores: Sequence[Sequence[float]] = ((-0.5, -1.5, -4.0),),
    combine: Combine = "product",
) -> apac.Decision:
    """Return decisions for as many images as there are reasons; a single value is shared by all of them."""
    images = len(stopped)

    def integers(values: Sequence[int] | int) -> Tensor:
        return torch.tensor(values, dtype=torch.int64).expand(images).clone()

    def floats(values: Sequence[float] | float) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).expand(images).clone()

    scores = torch.tensor(log_scores, dtype=torch.float64)
    scores = scores.expand(images, scores.shape[1]).clone()
    return apac.Decision(
        labels=integers(labels),
        log_scores=scores,
        mean_probabilities=scores.exp(),
        standard_errors=torch.full_like(scores, 0.05),
        runners_up=integers(runners_up),
        margins=floats(margins),
        margin_errors=floats(margin_errors),
        passes=integers(passes),
        clipped=integers(clipped),
        stopped=tuple(stopped),
        combine=combine,
    )


def assert_best(labels: Tensor, scores: Tensor) -> None:
    """Assert that labels (N,) have the largest scores (N, K), up to 1e-4: the rounding of logits may swap near ties."""
    chosen = scores.gather(1, labels[:, None])[:, 0]
    torch.testing.assert_close(chosen, scores.amax(dim=1), atol=1e-4, rtol=0)
