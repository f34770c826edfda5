"""Temperatures that can be trusted when they are fitted on few images."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from apac.evaluation.calibration import RANGE, negative_log_likelihood, with_temperature

SPREAD = 1.0  # standard deviation of the prior of ln temperature: a factor e or 1 / e is nothing unusual
STEPS = 25  # halvings of the logarithm of the range, to 4e-7
FOLDS = 5


def fit_moderate_temperature(scores: Tensor, labels: Tensor) -> float:
    """Return the temperature that is most probable given labeled images, with a prior around 1.

    The likelihood alone wants certainty where all of few images are right, and one wrong image then costs any price.
    The prior, ln temperature ~ N(0, SPREAD²), weighs little against some hundred images.
    """
    relative = (scores - scores.gather(1, labels[:, None])).double()  # to the label's
    low, high = map(math.log, RANGE)
    for _ in range(STEPS):
        middle = (low + high) / 2
        probabilities = (relative / math.exp(middle)).softmax(dim=1)
        gain = float((probabilities * relative).sum()) / math.exp(middle)  # of the log-likelihood, by ln temperature
        low, high = (middle, high) if gain > middle / SPREAD**2 else (low, middle)
    return math.exp((low + high) / 2)


def cross_fitted_losses(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the negative log-likelihood of each image, (N,), with the temperature of the other four fifths."""
    fold = torch.arange(len(labels)) % FOLDS
    losses = torch.empty(len(labels), dtype=torch.float64)
    for k in range(FOLDS):
        inside = fold == k
        temperature = fit_moderate_temperature(scores[~inside], labels[~inside])
        losses[inside] = negative_log_likelihood(with_temperature(scores[inside], temperature), labels[inside])
    return losses
