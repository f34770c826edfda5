"""The scikit-learn estimator: scikit-learn's checks and tools, and the three kinds of data."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import apac
from estimators import EXPECTED_FAILURES, ROUNDING, quick


@pytest.fixture(scope="module")
def blobs() -> tuple[np.ndarray, np.ndarray]:
    return make_blobs(120, centers=3, n_features=4, random_state=0)


# Few epochs and passes, for speed; everything else is the default.
QUICK = apac.ApacClassifier(epochs=10, rule=apac.Certified(error=0.05, limit=64))


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([QUICK], expected_failed_checks=lambda estimator: EXPECTED_FAILURES)
def test_scikit_learns_own_checks_pass(estimator, check):
    check(estimator)


def test_a_missing_scikit_learn_gives_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "apac.adapters.sklearn", raising=False)
    with pytest.raises(apac.InputError, match=r"scikit-learn is not installed; run: pip install .*\[sklearn\]"):
        getattr(apac, "ApacClassifier")  # noqa: B009


def test_it_works_in_pipelines_and_cross_validation(blobs):
    pipeline = make_pipeline(StandardScaler(), quick())
    assert cross_val_score(pipeline, *blobs, cv=3).mean() > 0.8


def test_a_grid_search_varies_the_deformation_and_its_parameters(blobs):
    X, y = blobs
    u = apac.Jitter(0.1)
    search = GridSearchCV(quick(deformation=u), {"deformation__std": [0.05, 50.0], "learning_rate": [0.03]}, cv=2)
    assert search.fit(X, y).best_score_ > 0.8
    assert search.best_estimator_.classifier_.deformation == apac.Jitter(0.05) and u == apac.Jitter(0.1)
    worst = search.cv_results_["mean_test_score"][1]
    assert worst < search.best_score_  # noise of 50 standard deviations leaves nothing to learn
    pipeline = make_pipeline(StandardScaler(), quick(deformation=apac.Compose(apac.Jitter(), apac.FeatureDropout())))
    grid = {"apacclassifier__deformation__featuredropout__p": [0.0, 0.2]}
    assert GridSearchCV(pipeline, grid, cv=2).fit(X, y).best_score_ > 0.8


def test_the_loss_of_each_epoch_is_kept_and_printed_if_verbose(blobs, capsys):
    quiet = quick().fit(*blobs)
    assert capsys.readouterr().out == ""
    loud = quick(verbose=True).fit(*blobs)
    printed = [f"Epoch {epoch}, loss = {loss:.8f}" for epoch, loss in enumerate(loud.loss_curve_, start=1)]
    assert capsys.readouterr().out.splitlines() == printed and len(printed) == 5
    np.testing.assert_allclose(loud.loss_curve_, quiet.loss_curve_, atol=ROUNDING)
    assert loud.loss_curve_[-1] < loud.loss_curve_[0]


def test_clones_and_pickles_predict_the_same(blobs):
    X, y = blobs
    fitted = quick(deformation=apac.Jitter(0.3), hidden_layer_sizes=(8, 8)).fit(X, y)
    again = clone(fitted)
    assert again.get_params() == fitted.get_params() and not hasattr(again, "classes_")
    for other in (again.fit(X, y), pickle.loads(pickle.dumps(fitted))):
        np.testing.assert_allclose(other.predict_proba(X), fitted.predict_proba(X), atol=ROUNDING)


@pytest.mark.parametrize("combine", ["product", "sum"])
def test_predictions_are_those_of_the_decision(blobs, combine):
    X, y = blobs
    names = np.array(["ant", "bee", "cat"])[y]
    fitted = quick(combine=combine).fit(X, names)
    decision = fitted.decide(X)
    assert decision.combine == combine and set(decision.passes.tolist()) == {8} and fitted.n_passes_ == 8
    np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[decision.labels])
    ranking = decision.log_scores.exp() if combine == "product" else decision.mean_probabilities
    expected = ranking / ranking.sum(1, keepdim=True)
    np.testing.assert_allclose(fitted.predict_proba(X), expected, atol=1e-12)
    np.testing.assert_allclose(np.exp(fitted.predict_log_proba(X)), fitted.predict_proba(X))
    assert fitted.decision_function(X).shape == (120, 3)
    two = quick(combine=combine).fit(X[y < 2], names[y < 2])
    np.testing.assert_array_equal(two.decision_function(X) > 0, two.predict(X) == "bee")


def test_the_default_rule_is_certified_and_n_passes_is_its_mean(blobs):
    fitted = quick(rule=None).fit(*blobs)
    assert fitted.classifier_.rule == apac.Certified(error=0.01, limit=1024)
    assert fitted.n_passes_ == pytest.approx(float(fitted.decide(blobs[0]).passes.double().mean()))
    assert fitted.n_passes_ >= 16


def test_features_are_standardized_and_a_constant_feature_is_harmless(blobs):
    X, y = blobs
    moved = np.column_stack([X * [1, 1e3, 1e-3, 7] + [5, -1e4, 0, 1], np.full(len(X), 3.0)])
    moved[:, 4] = 0.1  # its standard deviation is a rounding error
    padded = np.column_stack([X, np.zeros(len(X))])
    np.testing.assert_allclose(
        quick().fit(moved, y).predict_proba(moved), quick().fit(padded, y).predict_proba(padded), atol=ROUNDING
    )


def test_series_and_images_with_a_user_defined_network(random):
    def network(shape: tuple[int, int, int], classes: int) -> nn.Module:
        channels, height, _ = shape
        size = (min(3, height), 3)
        layers = nn.Conv2d(channels, 6, size, padding="same"), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        return nn.Sequential(*layers, nn.Linear(24, classes))

    y = np.arange(60) % 2
    time = np.linspace(0, 1, 40)
    series = np.stack([np.stack([np.sin((6 + 20 * c) * time + i), np.cos(3 * time)]) for i, c in enumerate(y)])
    u = apac.Compose(apac.TimeShift(), apac.TimeWarp(), apac.Amplitude(), apac.Jitter(0.05))
    fitted = quick(deformation=u, network=network, epochs=60, learning_rate=0.1).fit(series, y)
    assert fitted.score(series, y) > 0.9
    assert next(fitted.network_.parameters()).dtype == torch.float32 and not fitted.network_.training
    assert fitted.n_features_in_ == 2

    images = np.random.default_rng(0).random((60, 1, 8, 8)) * 0.2
    images[y == 1, :, :4] += 0.8
    assert quick(deformation=apac.Homography(), network=network, epochs=25).fit(images, y).score(images, y) > 0.9


def test_class_distinctive_deformation_follows_the_order_of_the_classes(blobs):
    X, y = blobs
    u = apac.PerClass({2: apac.Jitter(0.5)}, default=apac.Jitter(0.05), classes=3)
    assert quick(deformation=u).fit(X, y).score(X, y) > 0.8
    # In training all samples of class b are moved far away, so the network does not recognize the real ones.
    names = np.array(["c", "a", "b"])[y]  # classes_ are a, b, c: class 1 is b, where y is 2
    away = apac.PerClass({1: apac.FeatureDropout(1.0, value=50.0)}, default=apac.Compose(), classes=3)
    fitted = quick(deformation=away, epochs=20).fit(X, names)
    probability = np.exp(fitted.classifier_.plain(fitted._to_samples(X)).numpy())
    assert probability[names == "a", 0].mean() > 0.9 and probability[names == "c", 2].mean() > 0.9
    assert probability[names == "b", 1].mean() < 0.8


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 0}, "epochs of an ApacClassifier must be an integer of at least 1"),
        ({"learning_rate": -1.0}, "learning_rate of an ApacClassifier must be a number above 0"),
        ({"batch_size": 0}, "batch_size of an ApacClassifier must be an integer of at least 1"),
        ({"weight_decay": -1}, "weight_decay of an ApacClassifier must be a number of at least 0"),
        ({"deformation": "jitter"}, "the deformation must be a Deformation"),
        ({"combine": "mean"}, "combine must be one of 'product', 'sum'"),
        ({"rule": 8}, "rule must be a Rule such as"),
        ({"class_weight": "even"}, 'class_weight must be a dictionary of weights by class label, "balanced" or None'),
        ({"input_type": "pictures"}, "input_type must be one of 'vectors', 'series', 'images' or None"),
        ({"hidden_layer_sizes": 64}, "hidden_layer_sizes must be positive integers"),
        ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes must be positive integers"),
        ({"network": nn.Linear(4, 3)}, "must be a function that builds a module"),
        ({"network": lambda shape, classes: nn.Flatten()}, "must return a torch module with parameters"),
        (
            {"network": lambda shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(4, classes + 1))},
            "the network must have 3 outputs, one for each class, got 4",
        ),
        ({"network": lambda shape, classes: nn.Linear(4, classes)}, "the network must return logits of shape"),
        ({"deformation": apac.PerClass({0: apac.Jitter()}, classes=1)}, "PerClass|labels must be between"),
    ],
)
def test_wrong_parameters_are_rejected_by_fit_in_one_sentence(options, sentence, blobs):
    with pytest.raises(ValueError, match=sentence):
        quick(**options).fit(*blobs)


def test_the_network_is_built_for_the_shape_of_virtual_samples():
    def crop(image: torch.Tensor) -> torch.Tensor:
        top = int(torch.randint(0, 3, ()))
        return image[:, top : top + 6, :6]

    X, y = np.random.default_rng(0).random((20, 1, 8, 8)), np.arange(20) % 2
    with pytest.raises(ValueError, match=r"turns images \(1, 8, 8\) into \(1, 6, 6\).*pass after="):
        quick(deformation=apac.from_callable(crop)).fit(X, y)
    u = apac.from_callable(crop, after=lambda image: image[:, :6, :6])
    assert (
        quick(deformation=u, rule=apac.FixedPasses(2), epochs=1).fit(X, y).network_.get_submodule("1").in_features == 36
    )


def test_a_single_class_is_rejected(blobs):
    with pytest.raises(ValueError, match="y has only one class, 'a'; a classifier needs at least two"):
        quick().fit(blobs[0], ["a"] * len(blobs[0]))


def test_dropout_follows_from_the_random_state(blobs):
    def with_dropout(shape: tuple[int, int, int], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(shape[2], 16), nn.Dropout(0.5), nn.Linear(16, classes))

    before = torch.get_rng_state()
    first, second = (quick(network=with_dropout, hidden_layer_sizes=(np.int64(8),)).fit(*blobs) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_allclose(first.predict_proba(blobs[0]), second.predict_proba(blobs[0]), atol=ROUNDING)


def test_layer_sizes_may_be_numpy_integers(blobs):
    assert quick(hidden_layer_sizes=tuple(np.array([8, 4]))).fit(*blobs).network_.get_submodule("1").out_features == 8


def test_samples_of_another_shape_are_rejected(random):
    X = np.random.default_rng(0).random((20, 2, 9))
    fitted = quick().fit(X, np.arange(20) % 2)
    with pytest.raises(ValueError, match=r"samples have the shape \(2, 8\), but the classifier was fitted on \(2, 9\)"):
        fitted.predict(X[..., :8])
    with pytest.raises(ValueError, match="X must be"):
        quick().fit(np.zeros((4, 1, 2, 3, 4)), [0, 1, 0, 1])


def test_a_network_that_returns_nan_is_reported(blobs):
    class Broken(nn.Linear):
        def forward(self, x):
            return super().forward(x.flatten(1)) * (torch.nan if not self.training else 1)

    with pytest.raises(ValueError, match="NaN"):
        quick(network=lambda shape, classes: Broken(shape[2], classes)).fit(*blobs)
