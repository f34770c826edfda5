"""Sample and class weights of the estimator, compared with scikit-learn's and with repeated samples."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import make_blobs
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.utils.class_weight import compute_sample_weight

import apac
from apac.adapters.sample_weights import combined_weights
from estimators import ROUNDING, quick

X, Y = make_blobs([60, 20, 10], cluster_std=3.0, random_state=0)
WEIGHTS = np.random.default_rng(0).integers(0, 4, len(Y))


def same(first: apac.ApacClassifier, second: apac.ApacClassifier) -> None:
    np.testing.assert_allclose(first.predict_proba(X), second.predict_proba(X), atol=ROUNDING)


def test_a_weight_of_zero_removes_a_sample():
    some = np.repeat([1, 0], [70, 20])
    assert set(Y[:70]) == {0, 1, 2}
    same(quick().fit(X, Y, sample_weight=some), quick().fit(X[:70], Y[:70]))


def test_only_the_ratios_of_weights_matter():
    same(quick().fit(X, Y, np.full(len(Y), 3.0)), quick().fit(X, Y))
    same(quick().fit(X, Y, 8.0 * WEIGHTS), quick().fit(X, Y, WEIGHTS))


def linear(**more: object) -> apac.ApacClassifier:
    """Logistic regression by the training loop, with so many samples per step that its noise is small."""
    return quick(
        deformation=apac.Compose(),
        hidden_layer_sizes=(),
        epochs=400,
        batch_size=512,
        learning_rate=0.5,
        weight_decay=0.0,
        rule=apac.FixedPasses(1),
        **more,
    )


@pytest.mark.parametrize("class_weight", [None, "balanced", {0: 1, 1: 5, 2: 0.5}], ids=str)
def test_weighted_training_minimizes_the_weighted_loss_as_logistic_regression_does(class_weight):
    fitted = linear(class_weight=class_weight).fit(X, Y, WEIGHTS)
    repeated, labels = X.repeat(WEIGHTS, axis=0), Y.repeat(WEIGHTS)
    oracle = LogisticRegression(C=1e6, class_weight=class_weight).fit(repeated, labels)
    # The last steps average over some thousand draws: an error of a probability of the order of 1 / sqrt(5000).
    np.testing.assert_allclose(fitted.predict_proba(X), oracle.predict_proba(X), atol=0.05)
    weights = compute_sample_weight(class_weight, labels)
    loss = log_loss(labels, oracle.predict_proba(repeated), sample_weight=weights)
    assert np.mean(fitted.loss_curve_[-20:]) == pytest.approx(loss, rel=0.05)


def test_class_weights_are_those_of_scikit_learn():
    for class_weight in ("balanced", {0: 1, 1: 5, 2: 0.5}, {1: 3.0}):
        np.testing.assert_allclose(combined_weights(None, class_weight, Y), compute_sample_weight(class_weight, Y))
    names = np.array(["ant", "bee", "cat"])[Y]
    weights = combined_weights(None, {"ant": 1, "bee": 2, "cat": 3}, names)
    np.testing.assert_array_equal(weights, Y + 1)
    # Balanced classes of weighted samples are those of the repeated samples.
    positive = WEIGHTS > 0
    repeated = compute_sample_weight("balanced", Y.repeat(WEIGHTS))
    expected = {c: repeated[Y.repeat(WEIGHTS) == c][0] for c in range(3)}
    combined = combined_weights(WEIGHTS, "balanced", Y)
    assert combined is not None
    np.testing.assert_allclose(combined[positive] / WEIGHTS[positive], [expected[c] for c in Y[positive]])


def test_balanced_weights_find_the_rare_class():
    rare = Y == 2
    balanced, plain = (quick(class_weight=weight, epochs=20).fit(X, Y) for weight in ("balanced", None))
    assert balanced.score(X[rare], Y[rare]) > plain.score(X[rare], Y[rare])


@pytest.mark.parametrize(
    ("sample_weight", "class_weight", "sentence"),
    [
        (np.ones(3), None, r"one weight for each sample, \(90,\), got \(3,\)"),
        (np.where(Y == 0, -1.0, 1.0), None, "finite numbers of at least 0"),
        (np.zeros(90), None, "not all zero"),
        (Y == 0, {0: 0, 1: 1, 2: 1}, "products of sample_weight and class_weight are all zero"),
        (Y == 0, None, "y has only one class with a weight above 0, '0'"),
        (None, {0: -1, 1: 1, 2: 1}, "finite numbers of at least 0"),
        (None, {0: 1, "bee": 1}, "are not in class_weight"),
        (None, 2, "class_weight must be a dictionary"),
    ],
)
def test_wrong_weights_are_rejected(sample_weight, class_weight, sentence):
    with pytest.raises(ValueError, match=sentence):
        quick(class_weight=class_weight).fit(X, Y, sample_weight=sample_weight)


def test_the_score_takes_sample_weights_too():
    fitted = quick().fit(X, Y, WEIGHTS)
    repeated = fitted.score(X.repeat(WEIGHTS, axis=0), Y.repeat(WEIGHTS))
    assert fitted.score(X, Y, sample_weight=WEIGHTS) == pytest.approx(repeated)
