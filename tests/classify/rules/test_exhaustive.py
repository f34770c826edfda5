"""The exact expectation over a deformation with finitely many values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import apac
from apac import trees

U = apac.Compose(apac.Shift(1), apac.Flip())
SHAPE = (1, 4, 5)
# Two batch sizes of a matrix product round differently, by a few units of float32's last digit of logits near 1.
ROUNDING = 1e-5


@pytest.fixture
def network(random):
    layer = torch.nn.Linear(20, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(3, 20, generator=random))
    return torch.nn.Sequential(torch.nn.Flatten(), layer)


def test_the_scores_are_the_means_over_all_shifts_and_flips(network, random):
    """numpy's pad and flip are the oracle."""
    images = torch.rand(7, *SHAPE, generator=random)
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (1, 1), (1, 1)), mode="reflect")
    views = [padded[:, :, y : y + 4, x : x + 5] for x in range(3) for y in range(3)]
    views += [np.flip(view, axis=3) for view in views]
    with torch.no_grad():
        passes = torch.stack([network(torch.from_numpy(view.copy())).log_softmax(1) for view in views])
    decision = apac.Classifier(network, U, apac.Exhaustive()).decide(images)
    torch.testing.assert_close(decision.log_scores, passes.double().mean(0), rtol=0, atol=ROUNDING)
    assert decision.stopped == ("exhaustive",) * 7
    assert decision.passes.tolist() == [18] * 7
    assert not decision.standard_errors.any() and not decision.margin_errors.any()


def test_neither_the_seed_nor_independence_changes_the_decision(network, random):
    images = torch.rand(7, *SHAPE, generator=random)
    first, *others = (
        apac.Classifier(network, U, apac.Exhaustive(), seed=seed, independent=independent, device_batch=batch)
        for seed, independent, batch in ((0, False, 128), (5, True, 3))
    )
    expected = first.decide(images)
    for classifier in others:
        decision = classifier.decide(images)
        assert torch.equal(decision.labels, expected.labels)
        torch.testing.assert_close(decision.log_scores, expected.log_scores, rtol=0, atol=ROUNDING)


def test_the_identity_has_one_value_and_gives_the_plain_prediction(network, random):
    images = torch.rand(4, *SHAPE, generator=random)
    classifier = apac.Classifier(network, apac.Compose(), apac.Exhaustive())
    decision = classifier.decide(images)
    torch.testing.assert_close(decision.log_scores, classifier.plain(images).double(), rtol=0, atol=ROUNDING)
    assert decision.passes.tolist() == [1] * 4
    assert not decision.standard_errors.any()  # a single pass that was sampled would have unknown errors


def test_random_passes_tend_to_the_exact_scores(network, random):
    images = torch.rand(3, *SHAPE, generator=random)
    exact = apac.Classifier(network, U, apac.Exhaustive()).decide(images)
    sampled = apac.Classifier(network, U, apac.FixedPasses(4096)).decide(images)
    distance = (sampled.log_scores - exact.log_scores).abs() / sampled.standard_errors
    assert distance.max() < 5


def test_a_random_draw_is_one_of_the_values(random):
    images = torch.rand(1, *SHAPE, generator=random)
    count = trees.size(U.values(SHAPE))
    every = U.apply(images.expand(count, -1, -1, -1), U.values(SHAPE))
    assert len(every.unique(dim=0)) == count == 18
    drawn = U(images.expand(200, -1, -1, -1), generator=random)
    assert (drawn[:, None] == every[None]).flatten(2).all(dim=2).any(dim=1).all()
    assert len(drawn.unique(dim=0)) == count


@pytest.mark.parametrize(
    ("u", "sentence"),
    [
        (apac.Homography(), "infinitely many values"),
        (apac.Compose(apac.Flip(), apac.Elastic()), "infinitely many values"),
        (apac.Flip(0.3), "some are likelier than others; use FixedPasses or Certified"),
        (apac.Shift(40), r"has 6,561 values, more than the 4,096 passes of the rule; use Exhaustive\(passes=6561\)"),
        (
            apac.Compose(apac.Shift(500), apac.Shift(500)),
            "2 parts may have at most 2,097,152 values to list",
        ),
        (apac.Compose(*[apac.Flip()] * 70), "a Compose of 70 parts may have at most 59,918 values"),
        (apac.Compose(*[apac.Shift(500)] * 1000), "may have at most 4,194 values to list; sample them"),
        (apac.Compose(*[apac.Flip()] * 12, apac.Shift(1)), "has 36,864 values, more than the 4,096 passes"),
        (apac.PerClass({0: apac.Flip()}, apac.Compose(), classes=3), "one deformation for all classes"),
    ],
)
def test_other_deformations_are_refused_in_one_sentence(network, u, sentence):
    with pytest.raises(apac.InputError, match=sentence) as caught:
        apac.Classifier(network, u, apac.Exhaustive()).decide(torch.rand(2, *SHAPE))
    assert len(str(caught.value)) < 400


def test_scores_end_at_the_last_value(network):
    images = torch.rand(2, *SHAPE)
    classifier = apac.Classifier(network, U, apac.Exhaustive())
    merged = classifier.score(images, 0, 10).merge(classifier.score(images, 10, 18))
    torch.testing.assert_close(merged.log_mean, classifier.decide(images).log_scores, rtol=0, atol=ROUNDING)
    with pytest.raises(apac.InputError, match="stop must be at most 18, the number of values of Compose"):
        classifier.score(images, 0, 19)


@pytest.mark.parametrize("max_shift", [1, 3, 11])  # also beyond the image, where the reflection is reflected
def test_a_shift_is_a_crop_of_the_reflected_image(max_shift, random):
    image = torch.rand(1, *SHAPE, generator=random)
    u = apac.Shift(max_shift)
    parameters = u.sample(20, SHAPE, generator=random)
    padded = np.pad(image[0].numpy(), ((0, 0), (max_shift,) * 2, (max_shift,) * 2), mode="reflect")
    shifted = u.apply(image.expand(20, -1, -1, -1), parameters)
    for result, (right, down) in zip(shifted.numpy(), parameters.shift.tolist(), strict=True):
        top, left = max_shift - down, max_shift - right
        np.testing.assert_array_equal(result, padded[:, top : top + 4, left : left + 5])


def test_an_evaluation_measures_all_values_and_keeps_their_scores_apart_from_those_of_random_passes(
    network, random, tmp_path
):
    images, labels = torch.rand(6, *SHAPE, generator=random), torch.arange(6) % 3
    exact = apac.Classifier(network, U, apac.Exhaustive())
    sampled = apac.Classifier(network, U, apac.FixedPasses(18))
    by_chance = apac.evaluate(sampled, images, labels, (18,), cache=tmp_path)
    evaluation = apac.evaluate(exact, images, labels, cache=tmp_path)
    assert [row.passes for row in evaluation.rows] == [18]
    torch.testing.assert_close(evaluation.scores.log_mean, exact.decide(images).log_scores, rtol=0, atol=ROUNDING)
    assert not torch.allclose(by_chance.scores.log_mean, evaluation.scores.log_mean, atol=1e-3)
