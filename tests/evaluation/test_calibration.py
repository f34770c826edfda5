"""Measures of calibration and of selective classification, against scikit-learn, scipy and brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.metrics import log_loss

from apac.evaluation import calibration
from apac.evaluation.selective import RiskCoverage
from apac.randomness import generator


@pytest.fixture
def scores() -> torch.Tensor:
    return 3 * torch.randn(400, 5, generator=generator(0, "test", 0), dtype=torch.float64)


@pytest.fixture
def labels(scores) -> torch.Tensor:
    """Labels for which the scores are too sharp by a factor of about 2.5."""
    probabilities = (scores / 2.5).softmax(dim=1)
    return torch.multinomial(probabilities, 1, generator=generator(0, "test", 1))[:, 0]


def test_likelihood_and_brier_score_agree_with_scikit_learn(scores, labels):
    log_probabilities = scores.log_softmax(dim=1)
    ours = float(calibration.negative_log_likelihood(log_probabilities, labels).mean())
    assert ours == pytest.approx(log_loss(labels, log_probabilities.exp()), rel=1e-9)
    truth = np.eye(5)[labels]
    brier = float(calibration.brier_score(log_probabilities, labels).mean())
    assert brier == pytest.approx(np.mean(np.sum((log_probabilities.exp().numpy() - truth) ** 2, axis=1)), rel=1e-12)


def fitted_by_scipy(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the mode of the posterior of the temperature, for the prior ln temperature ~ N(0, 1)."""

    def objective(x: float) -> float:
        return float(-log_softmax(scores / np.exp(x), axis=1)[np.arange(len(labels)), labels].sum() + x**2 / 2)

    return float(np.exp(minimize_scalar(objective, bracket=(-1, 1), tol=1e-10).x))


@pytest.mark.parametrize("images", [1, 10, 400])
@pytest.mark.parametrize("factor", [-1.0, 0.1, 1.0, 10.0])
def test_the_temperature_is_the_mode_of_its_posterior(scores, labels, images, factor):
    values, truth = factor * scores[:images], labels[:images]
    expected = fitted_by_scipy(values.numpy(), truth.numpy())
    assert calibration.fit_temperature(values, truth) == pytest.approx(expected, rel=1e-5)  # its minimum is flat


def test_few_images_that_are_all_right_or_all_wrong_have_a_moderate_temperature():
    """With a margin of m in two classes, ln T = -N m / T / (1 + exp(m / T)), and the sign changes for wrong images."""
    for count, margin in ((1, 3.0), (20, 3.0), (20, -3.0)):
        scores = torch.tensor([[margin, 0.0]], dtype=torch.float64).repeat(count, 1)
        t = calibration.fit_temperature(scores, torch.zeros(count, dtype=torch.long))
        assert np.log(t) == pytest.approx(-count * margin / t / (1 + np.exp(margin / t)), rel=1e-9)
        assert 0.3 < t < 30
        assert (t < 1) == (margin > 0)
    assert calibration.fit_temperature(scores[:0], torch.zeros(0, dtype=torch.long)) == 1


def test_cross_fitting_takes_the_other_four_fifths(scores, labels):
    found = calibration.cross_fit_temperatures(scores, labels)
    for k in range(5):
        others = np.arange(400) % 5 != k
        expected = fitted_by_scipy(scores.numpy()[others], labels.numpy()[others])
        assert found[k::5].tolist() == pytest.approx([expected] * 80, rel=1e-5)
    assert calibration.cross_fit_temperatures(scores[:1], labels[:1]).tolist() == [1]  # the prior's


def test_the_calibration_error_agrees_with_numpy(scores, labels):
    confidence, prediction = scores.softmax(dim=1).max(dim=1)
    correct = prediction == labels
    bins = calibration.reliability(confidence, correct, bins=10)
    edges = np.linspace(0, 1, 11)
    expected = 0.0
    for low, high in itertools.pairwise(edges):
        inside = (confidence.numpy() > low) & (confidence.numpy() <= high)
        if inside.any():
            gap = abs(confidence.numpy()[inside].mean() - correct.numpy()[inside].mean())
            expected += inside.mean() * gap
    found = sum(part.images * abs(part.confidence - part.accuracy) for part in bins) / 400
    assert found == pytest.approx(expected, rel=1e-12)
    assert sum(part.images for part in bins) == 400


def test_risk_and_coverage_of_a_small_example():
    curve = RiskCoverage.of(torch.tensor([0.9, 0.5, 0.7, 0.6]), torch.tensor([True, False, True, False]))
    assert curve.wrong.tolist() == [0, 0, 1, 2]
    assert curve.risk.tolist() == [0, 0, 1 / 3, 1 / 2]
    assert curve.coverage.tolist() == [0.25, 0.5, 0.75, 1]


def test_ties_in_confidence_are_averaged_over_their_order():
    confidence = np.array([0.9, 0.5, 0.5, 0.5, 0.2])
    correct = np.array([True, True, False, False, True])
    curves = []
    for order in itertools.permutations(range(5)):
        if all(confidence[a] >= confidence[b] for a, b in itertools.pairwise(order)):
            errors = np.cumsum(~correct[list(order)])
            curves.append(errors)
    curve = RiskCoverage.of(torch.from_numpy(confidence), torch.from_numpy(correct))
    assert curve.wrong.tolist() == pytest.approx(np.mean(curves, axis=0).tolist())
