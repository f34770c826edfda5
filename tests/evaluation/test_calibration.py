"""Measures of calibration and of selective classification, against scikit-learn, scipy and brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
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


def test_the_temperature_minimizes_the_likelihood(scores, labels):
    def likelihood(log_temperature: float) -> float:
        log_probabilities = calibration.with_temperature(scores, float(np.exp(log_temperature)))
        return float(calibration.negative_log_likelihood(log_probabilities, labels).mean())

    ours = calibration.fit_temperature(scores, labels)
    best = minimize_scalar(likelihood, bracket=(-1, 2))
    assert likelihood(np.log(ours)) <= best.fun + 1e-12
    assert ours == pytest.approx(float(np.exp(best.x)), rel=1e-4)
    assert calibration.fit_temperature(2 * scores, labels) == pytest.approx(2 * ours, rel=1e-9)


def test_a_temperature_stays_finite_where_there_is_no_best_one(scores):
    right = scores.argmax(dim=1)
    assert calibration.fit_temperature(scores, right) == pytest.approx(1e-3, rel=1e-3)
    assert calibration.fit_temperature(-scores, right) == pytest.approx(1e3, rel=1e-3)


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
    assert calibration.calibration_error(bins) == pytest.approx(expected, rel=1e-12)
    assert sum(part.images for part in bins) == 400


def test_risk_and_coverage_of_a_small_example():
    curve = RiskCoverage.of(torch.tensor([0.9, 0.5, 0.7, 0.6]), torch.tensor([True, False, True, False]))
    assert curve.wrong.tolist() == [0, 0, 1, 2]
    assert curve.risk.tolist() == [0, 0, 1 / 3, 1 / 2]
    assert curve.aurc == pytest.approx((1 / 3 + 1 / 2) / 4)
    assert curve.augrc == pytest.approx(3 / 16)
    assert curve.coverage_at(0.1) == 0.5
    assert curve.coverage_at(0.4) == 0.75


def test_ties_in_confidence_are_averaged_over_their_order():
    confidence = np.array([0.9, 0.5, 0.5, 0.5, 0.2])
    correct = np.array([True, True, False, False, True])
    areas = []
    for order in itertools.permutations(range(5)):
        if all(confidence[a] >= confidence[b] for a, b in itertools.pairwise(order)):
            errors = np.cumsum(~correct[list(order)])
            areas.append(((errors / np.arange(1, 6)).mean(), (errors / 5).mean()))
    curve = RiskCoverage.of(torch.from_numpy(confidence), torch.from_numpy(correct))
    assert (curve.aurc, curve.augrc) == pytest.approx(tuple(np.mean(areas, axis=0)))


def test_no_coverage_has_a_risk_below_that_of_the_first_image():
    assert RiskCoverage.of(torch.tensor([0.9, 0.1]), torch.tensor([False, False])).coverage_at(0.5) == 0
