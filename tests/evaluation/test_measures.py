"""Measures of decisions and probabilities, against scikit-learn, scipy and brute force."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss, top_k_accuracy_score, zero_one_loss
from torch import Tensor

from apac.classify.scores import logarithms
from apac.evaluation.calibration import with_temperature
from apac.evaluation.measures import OF_PROBABILITIES, CalibratedScores, Measures, calibrate, measure
from apac.randomness import generator

IMAGES, CLASSES, SHARPNESS = 900, 4, 2.0


@pytest.fixture(scope="module")
def truth() -> Tensor:
    """Logits whose softmax is the probability of the labels."""
    return 2 * torch.randn(IMAGES, CLASSES, generator=generator(0, "test", 0), dtype=torch.float64)


@pytest.fixture(scope="module")
def labels(truth) -> Tensor:
    return torch.multinomial(truth.softmax(dim=1), 1, generator=generator(0, "test", 1))[:, 0]


@pytest.fixture(scope="module")
def rules(truth, labels) -> list[CalibratedScores]:
    """A plain prediction with noise that is too sharp, and a rule without noise."""
    noise = 2 * torch.randn(IMAGES, CLASSES, generator=generator(0, "test", 2), dtype=torch.float64)
    return [
        calibrate("plain", 1, SHARPNESS * (truth + noise), labels, None),
        calibrate("product", 16, SHARPNESS * truth, labels, None),
    ]


@pytest.fixture(scope="module")
def measured(rules, labels) -> tuple[Measures, ...]:
    return measure(rules, labels)


def test_values_agree_with_scikit_learn(rules, labels, measured):
    for rule, part in zip(rules, measured, strict=True):
        predicted = rule.scores.argmax(dim=1).numpy()
        assert part.error.value == pytest.approx(zero_one_loss(labels, predicted))
        assert part.top2.value == pytest.approx(1 - top_k_accuracy_score(labels, rule.scores, k=2))
        for temperature, found in ((1.0, part.uncalibrated), (rule.temperatures, part.calibrated)):
            probabilities = with_temperature(rule.scores, temperature).exp().numpy()
            assert found.nll.value == pytest.approx(log_loss(labels, probabilities), rel=1e-9)
            brier = brier_score_loss(labels, probabilities, scale_by_half=False)
            assert found.brier.value == pytest.approx(brier, rel=1e-9)
            confidence, correct = probabilities.max(axis=1), predicted == labels.numpy()
            accuracy, mean = calibration_curve(correct, confidence, n_bins=15)
            shown = [bin for bin in found.bins if bin.images]
            assert [bin.accuracy for bin in shown] == pytest.approx(accuracy.tolist())
            assert [bin.confidence for bin in shown] == pytest.approx(mean.tolist())
            sizes = np.histogram(confidence, bins=np.linspace(0, 1, 16))[0]
            expected = np.average(np.abs(accuracy - mean), weights=sizes[sizes > 0])
            assert found.calibration_error.value == pytest.approx(expected)
            assert len(set(confidence)) == len(labels)  # no ties
            errors, decided = np.cumsum(~correct[np.argsort(-confidence)]), np.arange(1, len(labels) + 1)
            coverage = max(decided[errors <= 0.01 * decided], default=0) / len(labels)
            areas = ((errors / decided).mean(), errors.mean() / len(labels), coverage)
            assert (found.aurc.value, found.augrc.value, found.coverage.value) == pytest.approx(areas)


def test_standard_errors_of_means_are_those_of_the_normal_theory(rules, labels, measured):
    losses = [
        -rule.scores.log_softmax(dim=1).gather(1, labels[:, None])[:, 0].numpy() for rule in rules
    ]  # of each image
    after = measured[1].uncalibrated.nll
    # 200 bootstrap samples know a standard error to 5 %; these are four times as much.
    assert after.standard_error == pytest.approx(stats.sem(losses[1]), rel=0.2)
    assert after.change == pytest.approx(np.mean(losses[1] - losses[0]))
    assert after.change_error == pytest.approx(stats.sem(losses[1] - losses[0]), rel=0.2)
    error = measured[1].error
    wrong = (rules[1].scores.argmax(dim=1) != labels).double().numpy()
    assert error.standard_error == pytest.approx(stats.sem(wrong), rel=0.2)
    assert error.value == wrong.mean()


def test_the_plain_prediction_has_no_change(measured):
    plain = measured[0]
    assert (plain.corrected, plain.corrupted, plain.mcnemar) == (0, 0, 1.0)
    for name in OF_PROBABILITIES:
        for part in (plain.uncalibrated, plain.calibrated):
            estimate = getattr(part, name)
            assert (estimate.change, estimate.change_error) == (0.0, 0.0)


def test_corrected_and_corrupted_images_and_the_exact_interval_are_those_of_scipy(rules, labels, measured):
    before, after = ((rule.scores.argmax(dim=1) == labels).numpy() for rule in rules)
    part = measured[1]
    assert (part.corrected, part.corrupted) == ((after & ~before).sum(), (before & ~after).sum())
    assert part.mcnemar == pytest.approx(stats.binomtest(part.corrected, part.corrected + part.corrupted).pvalue)
    exact = stats.binomtest(int((~after).sum()), IMAGES).proportion_ci(0.95, method="exact")
    assert part.error_interval == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_the_temperature_restores_probabilities_that_are_too_sharp(measured):
    assert measured[1].temperature == pytest.approx(SHARPNESS, rel=0.15)  # its standard error is about 4 %
    for part in measured:
        assert part.calibrated.nll.value < part.uncalibrated.nll.value
        assert part.calibrated.calibration_error.value < part.uncalibrated.calibration_error.value / 2


def test_no_image_takes_part_in_the_fit_of_its_own_temperature(rules, labels):
    """A wrong label of one image changes the temperature of the other folds alone."""
    scores = rules[0].scores
    changed = labels.clone()
    changed[7] = (changed[7] + 1) % CLASSES
    before = calibrate("plain", 1, scores, labels, None).temperatures
    after = calibrate("plain", 1, scores, changed, None).temperatures
    same = before == after
    assert same[7]
    assert int(same.sum()) == IMAGES // 5
    assert len(before.unique()) == 5


def test_held_out_images_give_one_temperature_to_all(rules, truth, labels):
    found = calibrate("plain", 1, rules[0].scores, labels, (3 * truth, labels))
    (temperature,) = found.temperatures.unique().tolist()
    assert temperature == pytest.approx(3, rel=0.15)


def test_probabilities_that_underflow_have_a_finite_likelihood():
    zero = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    scores = logarithms("sum", zero.log(), zero)
    rule = calibrate("sum", 1, scores, torch.tensor([1]), (scores, torch.tensor([1])))
    (part,) = measure([rule], torch.tensor([1]))
    assert 700 < part.uncalibrated.nll.value < 800
    assert np.isfinite(part.calibrated.nll.value)


def test_numbers_can_be_stored(measured):
    payload = json.loads(json.dumps([part.to_json() for part in measured], allow_nan=False))
    assert payload[1]["calibrated"]["nll"]["value"] == measured[1].calibrated.nll.value
    assert sum(payload[1]["uncalibrated"]["bins"]["images"]) == IMAGES
    columns = measured[1].columns()
    assert columns["calibrated_nll_se"] == measured[1].calibrated.nll.standard_error
    assert columns["error_low"] < measured[1].error.value < columns["error_high"]
