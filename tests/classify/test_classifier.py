"""The classifier and its promises."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import apac
from apac import models
from apac.randomness import generator
from decisions import assert_best
from kinds import PER_CLASS

U = apac.presets.mnist()
ROUNDING = 1e-4  # of a logit: batches of another shape may be multiplied in another order


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return models.build("mnist-cnn", generator=generator(5, "test", 0)).eval()


@pytest.fixture
def images(digits: tuple[Tensor, Tensor]) -> Tensor:
    return digits[0][:24]  # shares divisors with the numbers of passes, so swapped rows do not cancel out


def oracle(network, u, images, passes, seed=0) -> np.ndarray:
    """Log-probabilities (M, N, K) by a plain loop: one image and one pass at a time, softmax and logarithm by numpy."""
    table = np.empty((passes, len(images), 10))
    for m in range(passes):
        parameters = u.sample(1, (1, 28, 28), generator=generator(seed, "pass", m))
        for i in range(len(images)):
            with torch.no_grad():
                logits = network(u.apply(images[i : i + 1], parameters))[0].double().numpy()
            table[m, i] = np.log(np.exp(logits) / np.exp(logits).sum())
    return table


def test_the_decision_is_the_largest_mean_of_log_softmaxes(network, images):
    table = oracle(network, U, images, 9)
    decision = apac.Classifier(network, U, rule=apac.FixedPasses(9)).decide(images)
    np.testing.assert_allclose(decision.log_scores, table.mean(0), atol=ROUNDING)
    np.testing.assert_allclose(decision.standard_errors, table.std(0, ddof=1) / 3, atol=ROUNDING)
    np.testing.assert_allclose(decision.mean_probabilities, np.exp(table).mean(0), atol=ROUNDING)
    assert_best(decision.labels, torch.from_numpy(table.mean(0)))
    assert decision.passes.tolist() == [9] * 24
    assert decision.stopped == ("fixed",) * 24
    assert decision.log_scores.dtype == torch.float64


def test_product_and_sum_differ_where_one_pass_is_sure_that_a_class_is_impossible():
    """Class 0 has probability 0.9, 0.9, 1e-9, class 1 the rest: the sum follows the majority, the product the veto."""

    def decide(combine):
        probabilities = iter([0.9, 0.9, 1e-9])

        def network(images: Tensor) -> Tensor:
            p = next(probabilities)
            return torch.tensor([[p, 1 - p]], dtype=torch.float64).log()

        classifier = apac.Classifier(network, apac.Flip(), apac.FixedPasses(3), combine=combine, device_batch=1)
        return classifier.decide(torch.zeros(1, 1, 4, 4))

    assert decide("product").labels.tolist() == [1]
    by_sum = decide("sum")
    assert by_sum.labels.tolist() == [0]
    assert by_sum.mean_probabilities[0, 0].item() == pytest.approx(0.6)
    assert by_sum.standard_errors[0, 0].item() == pytest.approx(np.std([0.9, 0.9, 1e-9], ddof=1) / 3**0.5)


def test_top_k_ranks_the_classes(network, images):
    decision = apac.Classifier(network, U, rule=apac.FixedPasses(4)).decide(images)
    expected = np.argsort(-decision.log_scores.numpy(), axis=1, kind="stable")
    assert decision.top(3).tolist() == expected[:, :3].tolist()
    assert torch.equal(decision.top(1)[:, 0], decision.labels)
    with pytest.raises(apac.InputError, match="between 1 and the 10 classes"):
        decision.top(11)


def test_ties_go_to_the_lower_class_index():
    network = lambda images: torch.zeros(len(images), 50)  # noqa: E731
    decision = apac.Classifier(network, U, apac.FixedPasses(2)).decide(torch.rand(3, 1, 28, 28))
    assert decision.top(50).tolist() == [list(range(50))] * 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("independent", [False, True])
def test_images_of_any_float_type_are_decided_by_a_float32_network(network, images, dtype, independent):
    classifier = apac.Classifier(network, U, apac.FixedPasses(3), independent=independent)
    expected = classifier.decide(images[:8].to(dtype).float()).log_scores
    # Deforming in bfloat16 rounds pixels at 2^-8.
    torch.testing.assert_close(classifier.decide(images[:8].to(dtype)).log_scores, expected, atol=0.05, rtol=0)


@pytest.mark.parametrize("u", [U, PER_CLASS], ids=["mnist", "per-class"])
@pytest.mark.parametrize("independent", [False, True])
def test_the_answer_does_not_depend_on_the_device_batch(network, images, independent, u):
    def decide(batch):
        rule = apac.FixedPasses(6)
        return apac.Classifier(network, u, rule, device_batch=batch, independent=independent).decide(images).log_scores

    expected = decide(200)
    for batch in (1, 7, 24):
        torch.testing.assert_close(decide(batch), expected, atol=ROUNDING, rtol=0)


@pytest.mark.parametrize("independent", [False, True])
def test_the_answer_for_an_image_does_not_depend_on_the_other_images_or_its_position(network, images, independent):
    classifier = apac.Classifier(network, U, rule=apac.FixedPasses(5), independent=independent)
    together = classifier.decide(images).log_scores
    reversed_ = classifier.decide(images.flip(0)).log_scores.flip(0)
    alone = torch.cat([classifier.decide(images[i : i + 1]).log_scores for i in range(0, len(images), 5)])
    torch.testing.assert_close(together, reversed_, atol=ROUNDING, rtol=0)
    torch.testing.assert_close(together[::5], alone, atol=ROUNDING, rtol=0)


def test_independent_parameters_differ_between_images_and_shared_ones_do_not(images):
    """Images that differ in one pixel are deformed equally by shared parameters, differently by independent ones."""
    seen: list[Tensor] = []

    def record(virtual: Tensor) -> Tensor:
        seen.append(virtual.clone())
        return torch.zeros(len(virtual), 2)

    pair = images[:1].repeat(2, 1, 1, 1)
    pair[1, 0, 0, 0] = 0.001
    for independent, same in ((False, True), (True, False)):
        seen.clear()
        apac.Classifier(record, U, rule=apac.FixedPasses(1), independent=independent).decide(pair)
        assert torch.allclose(seen[0][0], seen[0][1], atol=0.01) == same


@pytest.mark.parametrize("independent", [False, True])
def test_64_passes_are_the_first_64_of_128(network, images, independent):
    few = images[:3]
    classifier = apac.Classifier(network, U, apac.FixedPasses(64), seed=3, independent=independent)
    first, rest, all_passes = (classifier.score(few, *numbers) for numbers in ((0, 64), (64, 128), (0, 128)))
    torch.testing.assert_close(first.merge(rest).log_mean, all_passes.log_mean, atol=ROUNDING, rtol=0)
    torch.testing.assert_close(classifier.decide(few).log_scores, first.log_mean, atol=ROUNDING, rtol=0)


def test_another_seed_gives_other_passes(network, images):
    first, second = (
        apac.Classifier(network, U, apac.FixedPasses(2), seed=seed).decide(images).log_scores for seed in (0, 1)
    )
    assert (first - second).abs().max() > 0.01


def test_no_two_passes_of_16384_have_the_same_parameters():
    u = apac.Homography()
    matrices = [u.sample(1, (1, 4, 4), generator=generator(0, "pass", m)).matrix[0] for m in range(16_384)]
    assert len(torch.unique(torch.stack(matrices).flatten(1), dim=0)) == 16_384


def elements_alive() -> int:
    """Return the number of elements of all tensors that exist since `gc.freeze`, with views counted once."""
    storages = {
        thing.untyped_storage().data_ptr(): thing.untyped_storage().nbytes() // 4
        for thing in gc.get_objects()
        if type(thing) is Tensor and not thing.is_meta
    }
    return sum(storages.values())


def peak_memory(images: int, passes: int, classes: int, independent: bool) -> int:
    """Return the largest number of elements alive at any call of the network, apart from the images to decide."""
    alive: list[int] = []

    def network(virtual: Tensor) -> Tensor:
        alive.append(elements_alive())
        return virtual.flatten(1)[:, :1].expand(-1, classes)

    to_decide = torch.rand(images, 1, 8, 8)
    u = apac.Elastic(sigma=1.0, alpha=1.0)
    classifier = apac.Classifier(network, u, apac.FixedPasses(passes), device_batch=50, independent=independent)
    gc.collect()
    gc.freeze()  # objects from before are no longer listed, which makes each count fast
    try:
        classifier.decide(to_decide)
    finally:
        gc.unfreeze()
    return max(alive)


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("images", [3, 50])
def test_memory_does_not_grow_with_the_number_of_passes(images, independent):
    """With many classes and small images, a stored pass would be larger than everything else."""
    few, many = (peak_memory(images, passes, 500, independent) for passes in (40, 200))
    assert many <= 1.05 * few


@pytest.mark.parametrize("independent", [False, True])
def test_apart_from_the_result_memory_does_not_grow_with_the_images(independent):
    few, many = (peak_memory(images, 3, 2, independent) for images in (100, 1000))
    scores = 8 * 8 * 900 * 2  # the running sums in double precision, old and new
    assert many - few < scores + 50 * 64


@pytest.mark.parametrize("rule", [apac.FixedPasses(1), apac.FixedPasses(8), apac.Certified(limit=32)], ids=str)
@pytest.mark.parametrize("combine", ["product", "sum"])
@pytest.mark.parametrize("u", [apac.Compose(), apac.PerClass({}, default=apac.Compose(), classes=10)])
def test_the_identity_deformation_gives_the_plain_prediction(network, images, rule, combine, u):
    classifier = apac.Classifier(network, u, rule, combine=combine)
    decision, plain = classifier.decide(images), classifier.plain(images)
    torch.testing.assert_close(decision.log_scores, plain, atol=ROUNDING, rtol=0)
    assert_best(decision.labels, plain)
    with torch.no_grad():
        assert_best(decision.labels, network(images))


def test_per_class_with_the_same_deformation_everywhere_gives_exactly_the_class_indistinctive_answer(network, images):
    """Exactly: both run the same operations on batches of the same shape."""
    same = apac.PerClass(dict.fromkeys(range(10), U), classes=10)
    decisions = [apac.Classifier(network, u, apac.FixedPasses(7), seed=2).decide(images) for u in (U, same)]
    assert torch.equal(decisions[0].log_scores, decisions[1].log_scores)
    assert torch.equal(decisions[0].standard_errors, decisions[1].standard_errors)


def test_class_distinctive_scores_come_from_the_passes_of_the_set_of_each_class(network, images):
    gentle = apac.Homography(std=0.02)
    u = apac.PerClass({1: gentle, 7: gentle}, default=U, classes=10)
    is_gentle = np.isin(np.arange(10), [1, 7])
    expected = np.where(is_gentle, oracle(network, gentle, images, 5).mean(0), oracle(network, U, images, 5).mean(0))
    decision = apac.Classifier(network, u, apac.FixedPasses(5)).decide(images)
    np.testing.assert_allclose(decision.log_scores, expected, atol=ROUNDING)
    assert_best(decision.labels, torch.from_numpy(expected))


def test_logits_of_any_size_are_processed_in_float64():
    """Float32 would round log-probabilities of -300 by 3e-5."""
    logits = torch.tensor([[0.0, -300.0, 40.0]])
    classifier = apac.Classifier(lambda images: logits.expand(len(images), 3), U, apac.FixedPasses(16))
    decision = classifier.decide(torch.rand(1, 1, 28, 28))
    assert decision.log_scores[0].tolist() == pytest.approx([-40.0, -340.0, 0.0], abs=1e-12)


def test_no_images_give_an_empty_decision(network):
    nothing = torch.zeros(0, 1, 28, 28)
    for rule in (apac.FixedPasses(3), apac.Certified()):
        decision = apac.Classifier(network, U, rule).decide(nothing)
        assert decision.labels.shape == decision.margins.shape == decision.clipped.shape == (0,)
        assert decision.log_scores.shape == (0, 10)
        assert decision.stopped == ()
    assert apac.Classifier(network, U).plain(nothing).shape == (0, 10)
    scores = apac.Classifier(network, U).score(nothing, 2, 7)
    assert (scores.passes, scores.log_sum.shape) == (5, (0, 10))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: apac.FixedPasses(0), "passes of a FixedPasses must be .* of at least 1, got 0"),
        (lambda: apac.FixedPasses("4"), "of at least 1, got '4'"),  # type: ignore[arg-type]
        (lambda: apac.FixedPasses(2.5), "of at least 1, got 2.5"),  # type: ignore[arg-type]
        (lambda: apac.FixedPasses(True), "of at least 1, got True"),
        (lambda: apac.Classifier(torch.flatten, U, seed=None), "seed of a Classifier must be"),  # type: ignore[arg-type]
        (lambda: apac.Classifier("cnn", U), "network must be callable"),  # type: ignore[arg-type]
        (lambda: apac.Classifier(torch.flatten, "mnist"), "must be a Deformation, got 'mnist'"),  # type: ignore[arg-type]
        (lambda: apac.Classifier(torch.flatten, U, rule=256), "rule must be a Rule such as .*, got 256"),  # type: ignore[arg-type]
        (lambda: apac.Classifier(torch.flatten, U, rule=apac.Certified), "rule must be a Rule such as"),  # type: ignore[arg-type]
        (
            lambda: apac.Classifier(torch.flatten, U, combine="mean"),  # type: ignore[arg-type]
            "combine must be one of 'product', 'sum', got 'mean'",
        ),
        (
            lambda: apac.Classifier(torch.flatten, U, device_batch=0),
            "device_batch of a Classifier must be .* of at least 1",
        ),
        (
            lambda: apac.Classifier(torch.flatten, U).score(torch.zeros(1, 1, 2, 2), 5, 5),
            "0 <= start < stop, got 5 and 5",
        ),
    ],
)
def test_a_wrong_argument_is_rejected_in_one_sentence(make, sentence):
    with pytest.raises(apac.InputError, match=sentence):
        make()


def images_with_pixel(value: float) -> Tensor:
    images = torch.zeros(9, 1, 28, 28)
    images[6, 0, 3, 3] = value
    return images


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (images_with_pixel(float("nan")), "image 6 has NaN or infinite pixels"),
        (images_with_pixel(float("inf")), "image 6 has NaN or infinite pixels"),
        (torch.zeros(2, 3, 28, 28), r"must have the shape \(N, 1, 28, 28\), got \(2, 3, 28, 28\)"),
        (torch.zeros(2, 0, 28, 28), r"got torch.float32 \(2, 0, 28, 28\)"),
        (torch.zeros(28, 28), r"shape \(N, C, H, W\)"),
        (torch.zeros(1, 1, 28, 28, dtype=torch.uint8), "floating-point"),
        (torch.zeros(1, 28, 28), r"pass one image as images\[None\]"),
        ([torch.zeros(1, 28, 28)] * 2, r"got list; make one tensor of them with torch.stack\(images\)"),
        ({"images": torch.zeros(2, 1, 28, 28)}, "got dict; take the images out of the batch"),
        (DataLoader(TensorDataset(torch.zeros(2, 1, 28, 28))), r"got DataLoader; .* with classifier.stream\(batches\)"),
        (np.zeros((2, 1, 28, 28)), r"got ndarray; convert them with torch.as_tensor\(images\)"),
    ],
)
def test_wrong_images_are_rejected_in_one_sentence(network, images, sentence):
    classifier = apac.Classifier(network, U, apac.FixedPasses(1), image_shape=(1, 28, 28), device_batch=4)
    for call in (classifier.decide, classifier.plain, lambda images: classifier.score(images, 0, 1)):
        with pytest.raises(apac.InputError, match=sentence):
            call(images)


def test_scores_of_a_network_that_returns_nan_are_rejected():
    classifier = apac.Classifier(lambda images: torch.full((len(images), 2), torch.nan), apac.Compose())
    with pytest.raises(apac.InputError, match="returned NaN or an infinite logit for image 0 in pass 5"):
        classifier.score(torch.zeros(2, 1, 2, 2), 5, 7)
    with pytest.raises(apac.InputError, match="for image 0 without deformation"):
        classifier.plain(torch.zeros(2, 1, 2, 2))


def test_per_class_for_another_number_of_classes_is_rejected(network, images):
    u = apac.PerClass({0: U}, default=apac.Compose(), classes=3)
    with pytest.raises(apac.InputError, match="PerClass has 3 classes, but the network or the data has 10"):
        apac.Classifier(network, u, apac.FixedPasses(1)).decide(images)


@pytest.mark.parametrize("combine", ["product", "sum"])
def test_the_temperature_changes_probabilities_and_nothing_else(network, images, combine):
    classifier = apac.Classifier(network, U, apac.FixedPasses(4), combine=combine)
    plain, sharp = classifier.decide(images), replace(classifier, temperature=0.5).decide(images)
    assert torch.equal(plain.ranking, sharp.ranking)
    assert torch.equal(plain.labels, sharp.labels)
    squares = plain.probabilities.square()  # temperature 1/2: the probabilities squared and normalized
    torch.testing.assert_close(sharp.probabilities, squares / squares.sum(dim=1, keepdim=True), rtol=1e-12, atol=0)
    assert sharp.select(torch.tensor([1])).temperature == 0.5
    assert classifier.decide(images[:0]).probabilities.shape == (0, 10)
    with pytest.raises(
        apac.InputError, match=r"temperature of a Classifier must be a number between 0\.001 and 1000, got 0"
    ):
        replace(classifier, temperature=0)
