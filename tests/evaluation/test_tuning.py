"""The choice of strength, combination and temperature, compared with an independent optimization."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from torch import Tensor

import apac
from apac.classify.choice import Choice
from apac.randomness import generator

COUNT, CLASSES = 300, 2


def samples(noise: float) -> tuple[Tensor, Tensor]:
    """Return images of one pixel, −1 or 1 by class, with noise."""
    labels = torch.arange(COUNT) % CLASSES
    random = torch.randn(COUNT, generator=generator(0, "test", 1), dtype=torch.float64)
    return (2.0 * labels - 1 + noise * random).view(-1, 1, 1, 1), labels


def smooth(images: Tensor) -> Tensor:
    """A network that needs no averaging."""
    return torch.cat([-images, images], dim=1).flatten(1)


def overfitted(images: Tensor) -> Tensor:
    """A network with a ripple that no data support: averaging over noise removes it."""
    return smooth(images + 1.5 * torch.sin(25 * images))


@cache
def tuned(network: Any, std: float, noise: float, **options: Any) -> Choice:
    """Tune once for all tests that ask for the same."""
    classifier = apac.Classifier(network, apac.Jitter(std), apac.FixedPasses(options.pop("passes", 16)))
    return apac.tune(classifier, *samples(noise), **options)


def test_losses_and_temperatures_are_those_of_an_independent_optimization():
    choice = tuned(overfitted, 0.15, 0.7, strengths=(0, 0.5, 1.25))
    images, labels = samples(0.7)
    truth, rows = labels.numpy(), np.arange(COUNT)
    losses: dict[tuple[float, str], Any] = {}
    moves = set()

    def fit(values: Any, where: Any) -> float:
        def objective(x: float) -> float:  # minus the log-posterior of ln temperature
            return float(-log_softmax(values / np.exp(x), axis=1)[where, truth[where]].sum() + x**2 / 2)

        return float(np.exp(minimize_scalar(objective, bracket=(-1, 1), tol=1e-10).x))

    def cross_fitted(values: Any, fixed: bool = False) -> Any:
        loss = np.empty(COUNT)
        for k in range(5):
            inside = rows % 5 == k
            calibrated = log_softmax(values / (1 if fixed else fit(values, rows[~inside])), axis=1)
            loss[inside] = -calibrated[rows[inside], truth[inside]]
        return loss

    for candidate in choice.candidates:
        scores = {}
        for passes, _ in candidate.temperatures:
            u = apac.Jitter(0.15).scaled(candidate.strength)
            classifier = apac.Classifier(overfitted, u, apac.FixedPasses(passes), combine=candidate.combine)
            scores[passes] = classifier.decide(images).log_probabilities.numpy()

        last = scores[candidate.temperatures[-1][0]]
        loss = cross_fitted(last)
        losses[candidate.strength, candidate.combine] = loss
        assert candidate.nll == pytest.approx(loss.mean(), abs=1e-6)
        assert candidate.nll_error == pytest.approx(loss.std(ddof=1) / COUNT**0.5, abs=1e-6)
        assert candidate.error == (last.argmax(axis=1) != truth).mean()
        for passes, temperature in candidate.temperatures:
            gain = cross_fitted(scores[passes], fixed=True) - cross_fitted(scores[passes])
            moved = gain.mean() > gain.std(ddof=1) / COUNT**0.5 + 1e-4  # otherwise 1 is within one standard error
            moves.add(bool(moved))
            assert temperature == pytest.approx(fit(scores[passes], rows) if moved else 1, rel=1e-5)
    assert moves == {True, False}  # so that both cases are compared
    best = min(losses.values(), key=lambda loss: loss.mean())
    for candidate in choice.candidates:
        difference = losses[candidate.strength, candidate.combine] - best
        assert candidate.above_best == pytest.approx(difference.mean(), abs=1e-6)
        assert candidate.above_best_error == pytest.approx(difference.std(ddof=1) / COUNT**0.5, abs=1e-6)
    gain = losses[0.0, "product"] - losses[choice.strength, choice.combine]
    assert (choice.gain, choice.gain_error) == pytest.approx((gain.mean(), gain.std(ddof=1) / COUNT**0.5), abs=1e-6)


def test_the_candidates_are_plain_and_each_strength_by_product_and_by_sum():
    choice = tuned(smooth, 0.1, 0.5, passes=1)
    expected = [(0, "product"), *((s / 4, c) for s in range(1, 6) for c in ("product", "sum"))]
    assert [(candidate.strength, candidate.combine) for candidate in choice.candidates] == expected
    assert [m for m, _ in tuned(smooth, 0.1, 0.5, passes=40).candidates[-1].temperatures] == [1, 4, 16, 40]
    assert [c.strength for c in tuned(smooth, 0.1, 0.5, strengths=(1,)).candidates] == [
        0,
        1,
        1,
    ]  # plain is the baseline


def test_plain_prediction_is_chosen_where_every_deformation_hurts():
    choice = tuned(smooth, 8.0, 0.3)
    assert choice.strength == 0
    assert choice.gain == 0
    assert "Plain prediction is the better choice for this network" in choice.advice
    assert "may be because" in choice.advice
    classifier = apac.Classifier(smooth, apac.Jitter(8.0), apac.FixedPasses(16))
    decided = choice.apply(classifier)
    images = samples(0.3)[0]
    assert (decided.rule, decided.deformation) == (apac.FixedPasses(1), apac.Compose())
    expected = classifier.plain(images).double() / choice.plain.temperatures[0][1]
    assert torch.allclose(decided.decide(images).log_probabilities, expected.log_softmax(1), atol=1e-12)


def test_a_strength_is_chosen_where_averaging_helps_and_its_advice_says_by_how_much():
    choice = tuned(overfitted, 0.15, 0.7)
    assert choice.strength > 0
    assert choice.gain > 2 * choice.gain_error
    assert "more than chance" in choice.advice
    assert f"{choice.plain.nll:.4f}" in choice.advice


def test_of_candidates_within_one_standard_error_the_closest_to_the_papers_rule_is_chosen():
    choice = tuned(smooth, 0.0, 0.5)  # without noise all candidates are the same, up to rounding
    assert (choice.strength, choice.combine) == (1, "product")
    assert "the paper's rule" in choice.advice
    assert "plain prediction may be as good here, at one pass instead of 16" in choice.advice
    assert "may be chance" in choice.advice
    for other in (tuned(overfitted, 0.15, 0.7), tuned(overfitted, 1.0, 0.7), tuned(smooth, 2.0, 0.5)):
        within = [c for c in other.candidates if c.above_best <= c.above_best_error + 1e-4]
        order = [(abs(c.strength - 1), c.combine) for c in within]
        assert (abs(other.strength - 1), other.combine) == min(order)


def test_the_choice_does_not_depend_on_the_device_batch(digits):
    run = apac.load("mnist-cnn")
    images, labels = digits[0][:60], digits[1][:60]
    results = []
    for device_batch in (7, 128):
        classifier = replace(run.classifier(paper_rule=True), device_batch=device_batch)
        results.append(apac.tune(classifier, images, labels, strengths=(0, 0.5, 1), passes=4))
    one, other = results
    assert (one.strength, one.combine) == (other.strength, other.combine)
    for candidate, same in zip(one.candidates, other.candidates, strict=True):
        assert candidate.nll == pytest.approx(same.nll, abs=1e-4)  # a logit is known to 1e-4
        # the likelihood of few images is flat, so that its maximum amplifies that rounding
        assert candidate.temperatures[-1][1] == pytest.approx(same.temperatures[-1][1], rel=1e-2)


def test_tuning_costs_at_most_as_many_passes_as_six_evaluations():
    calls = []

    def counting(images: Tensor) -> Tensor:
        calls.append(len(images))
        return smooth(images)

    tuned(counting, 0.1, 0.5, passes=64)
    assert sum(calls) <= 6 * 64 * COUNT


def test_the_temperature_is_interpolated_in_the_logarithm_of_the_passes():
    chosen = replace(tuned(smooth, 0.1, 0.5).chosen, temperatures=((1, 2.0), (4, 1.0), (64, 0.5)))
    expected = {1: 2.0, 2: 1.5, 4: 1.0, 16: 0.75, 64: 0.5, 1000: 0.5}
    assert {m: chosen.temperature(apac.FixedPasses(m)) for m in expected} == pytest.approx(expected)
    assert chosen.temperature(apac.Certified()) == 0.5
    assert replace(chosen, temperatures=((1, 2.0),)).temperature(apac.FixedPasses(64)) == 2.0


def test_a_choice_is_applied_to_a_classifier_and_stored_as_json():
    choice = tuned(overfitted, 0.15, 0.7)
    assert Choice.from_json(json.loads(json.dumps(choice.to_json()))) == choice
    classifier = apac.Classifier(overfitted, apac.Jitter(0.15), apac.FixedPasses(4))
    applied = choice.apply(classifier)
    assert applied.deformation == apac.Jitter(0.15).scaled(choice.strength)
    assert (applied.combine, applied.rule) == (choice.combine, classifier.rule)
    assert applied.temperature == pytest.approx(dict(choice.chosen.temperatures)[4])
    other = next(c for c in choice.candidates if c.strength == choice.strength and c.combine != choice.combine)
    assert choice.apply(classifier, other.combine).temperature == pytest.approx(dict(other.temperatures)[4])


def test_few_images_and_missing_classes_are_said():
    images, labels = samples(0.5)
    classifier = apac.Classifier(smooth, apac.Jitter(0.1), apac.FixedPasses(2))
    with pytest.raises(apac.InputError, match="9 images are too few to tune on; pass at least 10"):
        apac.tune(classifier, images[:9], labels[:9])
    assert tuned(smooth, 0.1, 0.5).notes == ()
    few = apac.tune(classifier, images[:40], labels[:40]).notes
    assert len(few) == 1
    assert few[0].startswith("40 images are few")
    one_class = apac.tune(classifier, images[::2], labels[::2]).notes
    assert one_class[0].startswith("1 of 2 classes have no images here (1)")
    named = apac.tune(classifier, images[::2], labels[::2], classes=("cat", "dog")).notes
    assert named[0].startswith("1 of 2 classes have no images here (dog)")


def test_a_deformation_without_strengths_is_refused_or_compared_at_0_and_1():
    class Own(apac.Deformation):
        def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> Tensor:
            return torch.zeros(n)

        def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
            return images

    images, labels = samples(0.5)
    with pytest.raises(apac.InputError, match=r"Own has no strength; override Own\.scaled"):
        apac.tune(apac.Classifier(smooth, Own()), images, labels, passes=2)
    library = apac.from_callable(lambda image: image + 0.1 * torch.rand(()))
    choice = apac.tune(apac.Classifier(smooth, library), images[:40], labels[:40], passes=2)
    assert [candidate.strength for candidate in choice.candidates] == [0, 1, 1]
    assert "has the strengths 0 and 1 only" in choice.notes[0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"passes": 0}, "passes of a FixedPasses must be an integer of at least 1"),
        ({"strengths": 1.0}, "strengths must be a sequence"),
        ({"strengths": (0,)}, r"strengths must have a number above 0, such as \(0, 0.5, 1\)"),
        ({"strengths": ()}, "strengths must have a number above 0"),
        ({"strengths": (1, -1)}, "strength of a deformation must be a number between 0 and"),
    ],
)
def test_bad_arguments_are_refused(options, sentence):
    classifier = apac.Classifier(smooth, apac.Jitter(0.1))
    with pytest.raises(apac.InputError, match=sentence):
        apac.tune(classifier, *samples(0.5), **options)
    with pytest.raises(apac.InputError, match="labels must be between 0 and 1"):
        apac.tune(classifier, samples(0.5)[0], torch.full((COUNT,), 2))


def test_a_classifier_without_deformation_has_nothing_to_tune():
    with pytest.raises(apac.InputError, match=r"there is no deformation, .* nothing to tune"):
        apac.tune(apac.Classifier(smooth, apac.Compose()), *samples(0.5))


def test_the_advice_says_when_plain_prediction_wins_by_chance_alone():
    choice = tuned(smooth, 8.0, 0.3)
    assert "is more than chance" in choice.advice
    best = min(choice.candidates[1:], key=lambda candidate: candidate.nll)
    close = replace(best, above_best_error=best.above_best)  # one standard error
    candidates = tuple(close if candidate == best else candidate for candidate in choice.candidates)
    advice = replace(choice, candidates=candidates).advice
    assert advice.startswith("Decide by plain prediction, which may be as good here, at one pass instead of 16")
    assert f"{best.above_best:.4f} ± {best.above_best:.4f} may be chance" in advice


def test_an_exhaustive_rule_is_tuned_with_random_passes():
    images = torch.eye(2, dtype=torch.float64).repeat(30, 1).view(60, 1, 1, 2)
    labels = torch.arange(60) % 2
    exhaustive = apac.Classifier(lambda x: x.flatten(1), apac.Flip(), apac.Exhaustive())
    choice = apac.tune(exhaustive, images, labels)
    assert choice == apac.tune(replace(exhaustive, rule=apac.FixedPasses(64)), images, labels)
    assert choice.passes == 64
    for strength, rule in ((0, apac.FixedPasses(1)), (0.5, apac.FixedPasses(64)), (1, apac.Exhaustive())):
        applied = replace(choice, strength=strength, combine="product").apply(exhaustive)
        assert applied.rule == rule
        assert applied.decide(images[:2]).labels.shape == (2,)


def test_the_passes_of_the_comparison_follow_the_rule():
    images, labels = samples(0.5)
    for rule, passes in ((apac.FixedPasses(2), 2), (apac.Certified(limit=16), 16), (apac.Certified(), 64)):
        classifier = apac.Classifier(smooth, apac.Jitter(0.1), rule)
        assert apac.tune(classifier, images[:20], labels[:20], strengths=(1,)).passes == passes
