"""Measures of certified decisions: settled answers may be wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from scipy import stats
from sklearn.metrics import log_loss

import apac
from apac.evaluation.calibration import fit_temperature
from apac.evaluation.certified_measures import measure_certified
from apac.randomness import generator
from decisions import make_decision

CLASSIFIER = apac.Classifier(lambda images: images.flatten(1), apac.Compose(), apac.Certified(limit=64))
STOPPED = ["certified"] * 5 + ["limit"] * 2 + ["nan"]
LOG_SCORES = torch.randn(8, 3, generator=generator(0, "test", 0), dtype=torch.float64).log_softmax(dim=1)


@pytest.fixture
def decision() -> apac.Decision:
    labels = [*LOG_SCORES.argmax(dim=1).tolist()[:7], -1]
    return make_decision(STOPPED, labels=labels, passes=[16] * 5 + [64] * 2 + [0], log_scores=LOG_SCORES.tolist())


@pytest.fixture
def labels(decision) -> torch.Tensor:
    """Settled answers are right but for the last, and one of two others is."""
    labels = decision.labels.clone()
    labels[[4, 6, 7]] = (labels[[4, 6, 7]] + 1) % 3
    return labels


def test_settled_answers_are_counted_apart_from_the_others(decision, labels):
    found = measure_certified(CLASSIFIER, decision, LOG_SCORES, labels)
    assert (found.settled.images, found.settled.right, found.settled.accuracy) == (5, 4, 0.8)
    assert (found.not_settled.images, found.not_settled.right) == (2, 1)
    exact = stats.binomtest(4, 5).proportion_ci(0.95, method="exact")
    assert found.settled.interval == pytest.approx((exact.low, exact.high), abs=1e-9)
    json.dumps(found.to_json(), allow_nan=False)


def test_measures_are_of_the_images_that_are_decided(decision, labels):
    plain, certified = measure_certified(CLASSIFIER, decision, LOG_SCORES, labels).measures
    expected = log_loss(labels[:7], LOG_SCORES[:7].exp(), labels=range(3))
    assert plain.uncalibrated.nll.value == pytest.approx(expected)
    assert certified.uncalibrated.nll.value == pytest.approx(expected)
    assert (certified.rule, certified.passes) == ("certified", pytest.approx((5 * 16 + 2 * 64) / 7))
    assert certified.error.value == pytest.approx(2 / 7)


def test_without_a_decided_image_there_is_nothing_to_measure():
    undecided = make_decision(["nan"], labels=-1)
    found = measure_certified(CLASSIFIER, undecided, LOG_SCORES[:1], torch.tensor([0]))
    assert (found.measures, found.reliability) == ((), ())
    assert found.settled.accuracy is None


def test_temperatures_are_fitted_on_held_out_images(decision, labels):
    logits = 3 * torch.randn(40, 3, generator=generator(0, "test", 1), dtype=torch.float64)
    apart = torch.randint(3, (40,), generator=generator(0, "test", 2))
    held_out = (logits.view(40, 1, 1, 3), apart)
    found = measure_certified(CLASSIFIER, decision, LOG_SCORES, labels, held_out=held_out)
    assert found.held_out == 40
    expected = fit_temperature(logits.log_softmax(dim=1), apart)
    assert [part.temperature for part in found.measures] == pytest.approx([expected] * 2, rel=1e-6)


def test_the_reliability_is_that_of_the_probabilities_in_use(decision, labels, monkeypatch):
    sharper = replace(decision, temperature=0.5)
    monkeypatch.setattr("apac.evaluation.reliability.MIN_IMAGES", 1)
    (of,) = measure_certified(CLASSIFIER, sharper, LOG_SCORES, labels).reliability
    assert (of.rule, of.passes, of.temperature, sum(of.images), sum(of.right)) == ("product", None, 0.5, 7, 5)
    largest = float((2 * LOG_SCORES[:7]).softmax(dim=1).max())
    assert of.bin_of(largest).high == 1.0
    assert of.bin_of(largest).low < largest  # so that it is in the last group
