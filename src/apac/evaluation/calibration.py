"""How well probabilities match the truth: likelihood, temperature, Brier score, calibration error."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BINS = 15  # of the calibration error, as usual in the literature
RANGE = (1e-3, 1e3)  # of a temperature; images that are all right, or all wrong, have no best one
STEPS = 80  # halvings of the logarithm of that range: more than float64 resolves


def negative_log_likelihood(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return −log p of the label of each image, (N,), for log-probabilities (N, K)."""
    return -log_probabilities.gather(1, labels[:, None])[:, 0]


def brier_score(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return the squared distance between the probabilities and the label of each image, from 0 to 2, (N,)."""
    truth = torch.nn.functional.one_hot(labels, log_probabilities.shape[1])
    return (log_probabilities.exp() - truth).square().sum(dim=1)


def with_temperature(scores: Tensor, temperature: float) -> Tensor:
    """Return the log-probabilities softmax(scores / temperature), (N, K)."""
    return (scores / temperature).log_softmax(dim=1)


def fit_temperature(scores: Tensor, labels: Tensor) -> float:
    """Return the temperature with the least negative log-likelihood on labeled images.

    The likelihood is concave in 1 / temperature, so its derivative has at most one zero, which is found by bisection.
    """
    scores = scores.double()
    right = scores.gather(1, labels[:, None])[:, 0]
    low, high = (torch.tensor(bound, dtype=torch.float64).log() for bound in RANGE)
    for _ in range(STEPS):
        middle = (low + high) / 2
        expected = (with_temperature(scores, float(middle.exp())).exp() * scores).sum(dim=1)
        too_sharp = (expected - right).mean() > 0  # less confidence would raise the likelihood
        low, high = (middle, high) if too_sharp else (low, middle)
    return float(((low + high) / 2).exp())


@dataclass(frozen=True)
class Bin:
    """The images whose confidence lies in one interval of a reliability diagram."""

    low: float
    high: float
    images: int
    confidence: float  # mean; 0 if there are no images
    accuracy: float  # 0 if there are no images


def reliability(confidence: Tensor, correct: Tensor, bins: int = BINS) -> tuple[Bin, ...]:
    """Group images by their confidence, the probability of the predicted class, in intervals of equal width."""
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    index = torch.bucketize(confidence.double(), edges[1:-1])
    result = []
    for number in range(bins):
        inside = index == number
        images = int(inside.sum())
        mean, accuracy = (float(values[inside].double().mean()) if images else 0.0 for values in (confidence, correct))
        result.append(Bin(float(edges[number]), float(edges[number + 1]), images, mean, accuracy))
    return tuple(result)


def calibration_error(bins: tuple[Bin, ...]) -> float:
    """Return the expected calibration error: the mean difference between confidence and accuracy, over the images."""
    total = sum(part.images for part in bins)
    return sum(part.images * abs(part.confidence - part.accuracy) for part in bins) / total
