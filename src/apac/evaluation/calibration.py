"""How well probabilities match the truth: likelihood, temperature, Brier score, calibration error."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from apac import limits

BINS = 15  # of the calibration error, as usual in the literature
PRIOR_STD = 1.0  # standard deviation of the prior of ln temperature: a factor e or 1 / e is nothing unusual
STEPS = 60  # at most, to find a temperature; Newton's method needs about six
TOLERANCE = 1e-12  # of its logarithm
FOLDS = 5


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
    """Return the temperature that is most probable given labeled images, with a prior around 1.

    Without a prior, a few images that are all classified correctly would drive the temperature to 0, and a later error
    would have an unbounded loss. The prior, ln temperature ~ N(0, PRIOR_STD²), hardly matters with some hundred images.
    Newton's method finds the zero of the derivative; bisection replaces a step that would leave the range.
    """
    scores = scores.double()
    scores = scores - scores.gather(1, labels[:, None])  # relative to the label's
    low, high = (
        math.log(1 / bound) for bound in reversed(limits.TEMPERATURE)
    )  # of the logarithm of x = 1 / temperature
    middle = 0.0
    for _ in range(STEPS):
        x = math.exp(middle)
        probabilities = (scores * x).softmax(dim=1)
        expected = (probabilities * scores).sum(dim=1)  # (N,) derivative of the loss of each image by x
        variance = (probabilities * scores.square()).sum(dim=1) - expected.square()  # (N,) its derivative
        by_log = x * float(expected.sum())
        slope = by_log + middle / PRIOR_STD**2
        curvature = by_log + x**2 * float(variance.sum()) + 1 / PRIOR_STD**2
        low, high = (low, middle) if slope > 0 else (middle, high)
        step = slope / curvature if curvature > 0 else math.inf
        if abs(step) < TOLERANCE:
            break
        middle = middle - step if low < middle - step < high else (low + high) / 2
    return math.exp(-middle)


def cross_fit_temperatures(scores: Tensor, labels: Tensor) -> Tensor:
    """Return a temperature for each image, (N,), fitted on the other four fifths of the images."""
    fold = torch.arange(len(labels)) % FOLDS
    temperatures = torch.empty(len(labels), dtype=torch.float64)
    for number in range(FOLDS):
        inside = fold == number
        temperatures[inside] = fit_temperature(scores[~inside], labels[~inside])
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
