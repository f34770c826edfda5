"""Parameters of the deformation and the rule as parameters of the estimator."""

from __future__ import annotations

import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

import apac
from apac.adapters.nested_parameters import get_parameters, with_parameters
from kinds import KINDS, PER_CLASS

TWICE = apac.Compose(apac.Jitter(0.1), apac.Flip(0.3), apac.Jitter(0.2))


@pytest.mark.parametrize("deformation", [*KINDS, PER_CLASS, apac.Certified(), apac.FixedPasses(3)], ids=repr)
def test_setting_every_parameter_to_its_value_changes_nothing(deformation):
    assert with_parameters(deformation, get_parameters(deformation)) == deformation


def test_a_parameter_of_the_estimator_is_one_of_its_deformation():
    u = apac.Jitter(0.1)
    classifier = apac.ApacClassifier(u)
    assert classifier.get_params()["deformation__std"] == 0.1
    assert "deformation__std" not in classifier.get_params(deep=False)
    copy = clone(classifier).set_params(deformation__std=0.4, epochs=7)
    assert copy.deformation == apac.Jitter(0.4) and copy.epochs == 7
    assert classifier.deformation is u and u == apac.Jitter(0.1)  # the caller's object is as it was
    assert clone(copy).deformation == apac.Jitter(0.4)
    assert copy.set_params(deformation__p=0.3, deformation=apac.FeatureDropout()).deformation == apac.FeatureDropout(
        0.3
    )


def test_the_defaults_can_be_varied_too():
    classifier = apac.ApacClassifier()
    assert classifier.get_params()["deformation__std"] == 0.1 and classifier.deformation is None
    classifier.set_params(deformation__std=0.3, rule__error=0.05)
    assert classifier.deformation == apac.Jitter(0.3) and classifier.rule == apac.Certified(error=0.05, limit=1024)


def test_parts_are_named_as_in_a_pipeline():
    names = [name for name in get_parameters(TWICE) if "__" not in name]
    assert (
        names == [name for name, _ in make_pipeline(*map(Named, TWICE.parts)).steps] == ["jitter-1", "flip", "jitter-2"]
    )
    changed = apac.ApacClassifier(TWICE).set_params(
        **{"deformation__jitter-2__std": 0.9, "deformation__flip__probability": 0}
    )
    assert changed.deformation == apac.Compose(apac.Jitter(0.1), apac.Flip(0), apac.Jitter(0.9))
    assert with_parameters(TWICE, {"flip": apac.FeatureDropout(0.5)}).parts[1] == apac.FeatureDropout(0.5)


def Named(part: apac.Deformation) -> object:
    """An object whose class has the name of the part."""
    return type(type(part).__name__, (), {})()


def test_classes_are_named_by_their_index():
    changed = with_parameters(PER_CLASS, {"1__std": 0.01, "default__elastic__alpha": 5.0})
    assert dict(changed.by_class)[1] == apac.Homography(std=0.01) and changed.classes == 10
    assert changed.default.parts[1] == apac.Elastic(sigma=6.0, alpha=5.0, reference_size=28)


@pytest.mark.parametrize(
    ("deformation", "name", "sentence"),
    [
        (apac.Jitter(), "deformation__sigma", r"Jitter\(std=0.1\) has no parameter 'sigma'; it has 'std'"),
        (TWICE, "deformation__jitter__std", "no parameter 'jitter'; it has 'jitter-1', 'flip', 'jitter-2'"),
        (apac.Jitter(), "deformation__std__more", "0.1 has no parameter 'more'; it has none"),
        (apac.Jitter(), "strength", "Invalid parameter 'strength'"),
        (apac.from_callable(abs), "deformation__name", "no parameter 'name'; it has none"),
    ],
)
def test_an_unknown_parameter_is_rejected(deformation, name, sentence):
    with pytest.raises(ValueError, match=sentence):
        apac.ApacClassifier(deformation).set_params(**{name: 1})
