"""ApacClassifier(tune=True): cross-validation chooses how to decide."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.metrics import log_loss
from sklearn.utils.estimator_checks import parametrize_with_checks

import apac
from apac.adapters.estimator_fit import TrainingData, _stratified_folds
from estimators import ROUNDING, quick

# As cheap as it can be: the checks are about the interface.
CHEAP = apac.ApacClassifier(tune=True, epochs=3, hidden_layer_sizes=(16,), rule=apac.FixedPasses(1))


@pytest.fixture(scope="module")
def blobs() -> tuple[np.ndarray, np.ndarray]:
    """Classes that overlap."""
    return make_blobs(120, centers=3, n_features=4, cluster_std=4.0, random_state=0)


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([CHEAP], legacy=False)
def test_scikit_learns_own_checks_pass(estimator, check):
    check(estimator)


def test_the_decision_follows_the_choice_of_the_cross_validation(blobs):
    X, y = blobs
    classifier = quick(tune=True, epochs=10).fit(X, y)
    choice = classifier.choice_
    assert (choice.images, choice.passes) == (120, 8)
    assert [candidate.strength for candidate in choice.candidates[::2]] == [0, 0.25, 0.5, 0.75, 1, 1.25]
    assert (classifier.strength_, classifier.temperature_) == (choice.strength, classifier.classifier_.temperature)
    untuned = quick(epochs=10).fit(X, y)
    assert (untuned.choice_, untuned.strength_, untuned.temperature_) == (None, 1, 1)
    expected = choice.apply(untuned.classifier_).decide(untuned._validate_samples(X)).probabilities.numpy()
    np.testing.assert_allclose(classifier.predict_proba(X), expected, atol=ROUNDING)
    np.testing.assert_allclose(classifier.predict_proba(X).sum(axis=1), 1)
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(X), classifier.predict_proba(X))
    assert clone(classifier).get_params()["tune"] is True


def test_probabilities_of_an_overconfident_network_become_better():
    X, y = make_blobs(300, centers=3, n_features=4, cluster_std=4.0, random_state=1)
    options = {"epochs": 30, "deformation": apac.Jitter(0.01), "learning_rate": 0.1, "weight_decay": 0.0}
    tuned, untuned = (quick(tune=tune, **options).fit(X[:100], y[:100]) for tune in (True, False))
    losses = [log_loss(y[100:], classifier.predict_proba(X[100:])) for classifier in (tuned, untuned)]
    assert tuned.temperature_ > 1.2
    assert losses[0] < losses[1]


def test_each_sample_is_measured_by_a_network_that_was_not_trained_on_it():
    labels = torch.tensor([0] * 23 + [1] * 12 + [2] * 5)
    fold = _stratified_folds(labels, 7)
    for c, count in enumerate((23, 12, 5)):
        sizes = np.bincount(fold[labels.numpy() == c], minlength=5)
        assert (sizes.max() - sizes.min(), sizes.sum()) == (int(count % 5 > 0), count)
    np.testing.assert_array_equal(fold, _stratified_folds(labels, 7))
    assert (fold != _stratified_folds(labels, 8)).any()
    array = np.arange(40.0)[:, None]
    data = TrainingData(array, labels, array[:, 0] + 1, 3, "vectors")
    for k in range(5):
        train, held_out = data.select(fold != k), data.select(fold == k)
        assert sorted([*train.array[:, 0], *held_out.array[:, 0]]) == array[:, 0].tolist()
        assert held_out.weights is not None
        np.testing.assert_array_equal(held_out.weights, held_out.array[:, 0] + 1)
    assert replace(data, weights=None).select(fold == 0).weights is None


def test_too_few_samples_are_refused(blobs):
    with pytest.raises(apac.InputError, match="9 samples are too few for tune=True; it needs at least 10"):
        quick(tune=True).fit(blobs[0][:9], blobs[1][:9])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"tune": "yes"}, "tune must be True or False, got 'yes'"),
        ({"tune": True, "combine": "sum"}, "tune=True chooses the combination itself; omit combine='sum'"),
        ({"tune": True, "deformation": apac.Compose()}, "there is no deformation"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_the_training(blobs, options, sentence, monkeypatch):
    monkeypatch.delattr("apac.adapters.sklearn.Training.run")
    with pytest.raises(apac.InputError, match=sentence):
        quick(**options).fit(*blobs)


def test_the_note_on_few_samples_does_not_promise_the_papers_rule(blobs):
    X, y = blobs
    (note,) = quick(tune=True, epochs=1, rule=apac.FixedPasses(1)).fit(X, y).choice_.notes
    assert note.startswith("120 images are few")
    assert note.endswith("and the choice may be chance.")


def test_an_exhaustive_rule_is_tuned():
    X = np.random.default_rng(0).uniform(size=(40, 1, 4, 4))
    y = np.arange(40) % 2
    options = {"deformation": apac.Flip(), "rule": apac.Exhaustive(), "input_type": "images", "epochs": 1}
    classifier = quick(tune=True, **options).fit(X, y)
    expected: dict[float, apac.FixedPasses] = {0: apac.FixedPasses(1), 1: apac.Exhaustive()}
    assert classifier.classifier_.rule == expected.get(classifier.strength_, apac.FixedPasses(64))
    assert classifier.predict(X).shape == (40,)
