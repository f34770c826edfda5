"""The shipped network that a report opens with, on a small data set and with a small network."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import scipy.stats
from sklearn.metrics import log_loss

import apac
from apac import data
from apac.evaluation.intervals import mcnemar
from apac.paper import opening, showcase
from apac.paper.showcase import Showcase, evaluate_showcase
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
    monkeypatch.setattr(showcase, "SHOWCASE_PASSES", (1, 4))
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
    assert shown.apac.error.value == pytest.approx(float((~right).double().mean()))
    assert shown.plain.error.value == pytest.approx(float((plain.argmax(dim=1) != labels).double().mean()))
    assert shown.evaluation.held_out == 200
    assert shown.classifier.temperature == 1  # the paper's rule, not the tuned one
    for measures, scores in ((shown.plain, plain), (shown.apac, decision.log_scores)):
        value, probabilities = measures.calibrated.nll.value, (scores / measures.temperature).softmax(dim=1).numpy()
        # Sums of float64 in another order, of log-probabilities whose float32 logits agree to 1e-4.
        assert value == pytest.approx(log_loss(labels.numpy(), probabilities, labels=range(10)), rel=1e-3)
    assert shown.example is not None
    assert int(shown.example.plain.argmax()) != shown.example.truth == int(shown.example.apac.argmax())


def test_a_second_evaluation_computes_no_pass(small, tmp_path, monkeypatch):
    first = evaluate_showcase(*small, seed=5, cache=tmp_path)
    monkeypatch.setattr(apac.Classifier, "score", lambda *a, **o: pytest.fail("computed again"))
    again = evaluate_showcase(*small, seed=5, cache=tmp_path)
    assert again.evaluation.to_json() == first.evaluation.to_json()


def fake(plain: int, apac_errors: int, small: tuple[Run, Any], tmp_path) -> Showcase:
    """The small showcase with other numbers of errors."""
    shown = evaluate_showcase(*small, seed=5, cache=tmp_path)
    row = replace(shown.evaluation.rows[-1], product=apac_errors / 1000)
    p = mcnemar(plain, apac_errors)
    evaluation = replace(shown.evaluation, images=1000, plain=plain / 1000, rows=(row,), mcnemar=p)
    return replace(shown, evaluation=evaluation)


def test_the_headline_states_a_gain_and_admits_that_there_is_none(small, tmp_path):
    assert opening.headline(fake(200, 100, small, tmp_path)) == (
        "On 1,000 test images of MNIST, the same network makes 100 errors instead of 200 when it decides by APAC: 50 % "
        "fewer, without new training (far beyond chance)."
    )
    assert opening.headline(fake(4, 3, small, tmp_path)).endswith("25 % fewer, without new training (may be chance).")
    assert opening.headline(fake(3, 4, small, tmp_path)).endswith(
        "makes 3 errors, and 4 when it decides by APAC: no gain."
    )


def test_the_table_of_the_gain_has_both_measures_with_intervals(small, tmp_path):
    shown = evaluate_showcase(*small, seed=5, cache=tmp_path)
    table = opening.gain(shown)
    assert (
        table.title == "mnist-cnn on 120 test images of MNIST, with 95 % intervals; NLL is the negative log-likelihood"
    )
    assert [row[0] for row in table.rows] == ["plain", "APAC, 4 passes", "difference"]
    cells = [[[float(number) for number in re.findall(r"-?\d+\.\d+", cell)] for cell in row[1:]] for row in table.rows]
    for (value, low, high), measures in zip((row[0] for row in cells), (shown.plain, shown.apac), strict=False):
        wrong = round(120 * measures.error.value)
        exact = scipy.stats.binomtest(wrong, 120).proportion_ci(method="exact")
        assert [value, low, high] == pytest.approx([100 * wrong / 120, 100 * exact.low, 100 * exact.high], abs=0.0051)
    for column in (0, 1):
        (plain, *_), (apac, *_), (difference, low, high) = (row[column] for row in cells)
        assert difference == pytest.approx(apac - plain, abs=0.011)  # two decimals, of percent
        assert low < difference < high
