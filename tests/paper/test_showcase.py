"""The shipped network that a report opens with, on a small data set and with a small network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.metrics import log_loss

import apac
from apac import data
from apac.paper import opening, showcase
from apac.paper.showcase import Compared, Estimate, Showcase, evaluate_showcase
from apac.runs.labeled_images import LabeledImages
from apac.runs.run import Run
from weak_runs import weak_run


@pytest.fixture
def small(monkeypatch) -> tuple[Run, data.Dataset]:
    """A run, and 120 digits that it has not seen."""
    whole = data.load("mnist-5k")
    dataset = replace(whole, test_images=whole.test_images[:120], test_labels=whole.test_labels[:120])
    run = weak_run(whole)
    held_out = LabeledImages(run.normalize(whole.train_images[::20]), whole.train_labels[::20], (), "mnist", own=True)
    monkeypatch.setattr(showcase, "images_held_out", lambda run, **options: held_out)
    monkeypatch.setattr(showcase, "PASSES", (1, 4))
    monkeypatch.setattr("apac.inference.engine.MIN_OPERATIONS", float("inf"))
    return run, dataset


def test_the_numbers_are_those_of_the_decisions_and_of_scikit_learn(small, tmp_path):
    run, dataset = small
    shown = evaluate_showcase(run, dataset, seed=5, cache=tmp_path)
    classifier = run.classifier(apac.FixedPasses(4), seed=5)
    images, labels = run.normalize(dataset.test_images), dataset.test_labels
    decision = classifier.decide(images)
    right = decision.labels == labels
    plain = classifier.plain(images)
    assert shown.error.apac.value == pytest.approx(float((~right).double().mean()))
    assert shown.error.plain.value == pytest.approx(float((plain.argmax(dim=1) != labels).double().mean()))
    for value, scores, temperature in (
        (shown.likelihood.plain.value, plain, shown.temperatures[0]),
        (shown.likelihood.apac.value, decision.log_scores, shown.temperatures[1]),
    ):
        probabilities = (scores / temperature).softmax(dim=1).numpy()
        # Sums of float64 in another order, of log-probabilities whose float32 logits agree to 1e-4.
        assert value == pytest.approx(log_loss(labels.numpy(), probabilities, labels=range(10)), rel=1e-3)
    assert shown.likelihood.difference.value == pytest.approx(
        shown.likelihood.plain.value - shown.likelihood.apac.value
    )
    assert shown.example is not None
    assert int(shown.example.plain.argmax()) != shown.example.truth == int(shown.example.apac.argmax())


def test_a_second_evaluation_computes_no_pass(small, tmp_path, monkeypatch):
    first = evaluate_showcase(*small, seed=5, cache=tmp_path)
    monkeypatch.setattr(apac.Classifier, "score", lambda *a, **o: pytest.fail("computed again"))
    again = evaluate_showcase(*small, seed=5, cache=tmp_path)
    assert (again.error, again.seconds) == (first.error, first.seconds)


def test_an_interval_is_that_of_a_mean_in_scipy(random):
    values = torch.randn(5000, generator=random).exp()
    estimate = Estimate.of(values)
    low, high = scipy.stats.norm.interval(0.95, np.mean(values.numpy()), scipy.stats.sem(values.numpy()))
    # scipy's quantile is 1.95996; scipy computes in float32
    assert (estimate.low, estimate.high) == (pytest.approx(low, rel=1e-4), pytest.approx(high, rel=1e-4))


@pytest.mark.parametrize(
    ("p", "words"),
    [
        (1e-64, "far beyond"),
        (9e-7, "far beyond"),
        (1e-6, "unlikely"),
        (0.02, "possibly"),
        (0.05, "may well"),
        (1, "may"),
    ],
)
def test_a_p_value_has_words(p, words):
    assert opening.chance(p).startswith(words)


def fake(plain: int, apac_errors: int, small: tuple[Run, Any], tmp_path) -> Showcase:
    """The small showcase with other numbers of errors."""
    shown = evaluate_showcase(*small, seed=5, cache=tmp_path)
    row = replace(shown.evaluation.rows[-1], product=apac_errors / 1000)
    p = opening.mcnemar(plain, apac_errors)
    evaluation = replace(shown.evaluation, images=1000, plain=plain / 1000, rows=(row,), mcnemar=p)
    return replace(shown, evaluation=evaluation)


def test_the_headline_states_a_gain_and_admits_that_there_is_none(small, tmp_path):
    assert opening.headline(fake(200, 100, small, tmp_path)) == (
        "On 1,000 test images of MNIST, the same network makes 100 errors instead of 200 when it decides by APAC: 50 % "
        "fewer, without new training; far beyond chance."
    )
    assert opening.headline(fake(4, 3, small, tmp_path)).endswith(
        "25 % fewer, without new training; may well be chance."
    )
    assert opening.headline(fake(3, 4, small, tmp_path)).endswith(
        "makes 3 errors, and 4 when it decides by APAC: no gain."
    )


def test_the_table_of_the_gain_has_both_measures_with_intervals(small, tmp_path):
    shown = evaluate_showcase(*small, seed=5, cache=tmp_path)
    numbers = Compared(Estimate(0.2, 0.1, 0.3), Estimate(0.1, 0.05, 0.15), Estimate(0.1, 0.04, 0.16))
    table = opening.gain(replace(shown, error=numbers, likelihood=numbers))
    assert (
        table.title == "mnist-cnn on 120 test images of MNIST, with 95 % intervals; NLL is the negative log-likelihood"
    )
    assert table.rows == (
        ("plain", "20.00 % (10.00 to 30.00)", "0.200 (0.100 to 0.300)"),
        ("APAC, 4 passes", "10.00 % (5.00 to 15.00)", "0.100 (0.050 to 0.150)"),
        ("difference", "10.00 % (4.00 to 16.00)", "0.100 (0.040 to 0.160)"),
    )
