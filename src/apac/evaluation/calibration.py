"""How well probabilities match the truth: likelihood, temperature, Brier score, calibration error."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from apac.randomness import generator

BINS = 15  # of the calibration error, as usual in the literature
RANGE = (1e-3, 1e3)  # of a temperature; images that are all right, or all wrong, have no best one
STEPS = 60  # at most, to find a temperature; Newton's method needs about eight
TOLERANCE = 1e-12  # of its logarithm
FOLDS = 2


def negative_log_likelihood(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return −log p of the label of each image, (N,), for log-probabilities (N, K)."""
    return -log_probabilities.gather(1, labels[:, None])[:, 0]


def brier_score(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return the squared distance between the probabilities and the label of each image, from 0 to 2, (N,)."""
    truth = torch.nn.functional.one_hot(labels, log_probabilities.shape[1])
    return (log_probabilities.exp() - truth).square().sum(dim=1)


def with_temperature(scores: Tensor, temperature: float | Tensor) -> Tensor:
    """Return the log-probabilities softmax(scores / temperature), (N, K), for one temperature or one per image (N,)."""
    divisor = temperature[:, None] if isinstance(temperature, Tensor) else temperature
    return (scores / divisor).log_softmax(dim=1)


def fit_temperature(scores: Tensor, labels: Tensor) -> float:
    """Return the temperature with the least negative log-likelihood on labeled images.

    The likelihood is concave in 1 / temperature, so its derivative has at most one zero. Newton's method finds it, with
    a halving of the range where a step would leave it.
    """
    scores = scores.double()
    scores = scores - scores.gather(1, labels[:, None])  # relative to the label's
    low, high = (math.log(1 / bound) for bound in reversed(RANGE))  # of the logarithm of x = 1 / temperature
    middle = 0.0
    for _ in range(STEPS):
        x = math.exp(middle)
        probabilities = (scores * x).softmax(dim=1)
        expected = (probabilities * scores).sum(dim=1)  # (N,) derivative of the loss of each image by x
        slope = float(expected.mean())
        low, high = (low, middle) if slope > 0 else (middle, high)
        curvature = float(((probabilities * scores.square()).sum(dim=1) - expected.square()).mean())
        previous, step = middle, slope / (x * curvature) if curvature > 0 else math.inf
        middle = middle - step if low < middle - step < high else (low + high) / 2
        if abs(middle - previous) < TOLERANCE:
            break
    return math.exp(-middle)


def cross_fit_temperatures(scores: Tensor, labels: Tensor, *, seed: int) -> Tensor:
    """Return a temperature for each image, (N,), fitted on the images of the other half. A single image has 1."""
    order = torch.randperm(len(scores), generator=generator(seed, "folds", 0))
    temperatures = torch.ones(len(scores), dtype=torch.float64)
    folds = [order[number::FOLDS] for number in range(FOLDS)]
    for number, fold in enumerate(folds):
        others = torch.cat([other for index, other in enumerate(folds) if index != number])
        if len(others):
            temperatures[fold] = fit_temperature(scores[others], labels[others])
    return temperatures


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
