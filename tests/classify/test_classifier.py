"""The decision rule and its promises."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import apac
from apac import models
from apac.randomness import generator
from kinds import PER_CLASS

U = apac.presets.mnist()


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return models.build("mnist-cnn", generator=generator(5, "test", 0)).eval()


@pytest.fixture
def images(digits: tuple[Tensor, Tensor]) -> Tensor:
    return digits[0][:24]  # shares divisors with numbers of passes: no mix-up of rows cancels out


def oracle(network, u, images, passes, seed=0) -> np.ndarray:
    """Log-probabilities (M, N, K) by a plain loop: one image, one pass at a time, softmax and logarithm by numpy."""
    table = np.empty((passes, len(images), 10))
    for m in range(passes):
        theta = u.sample(1, (1, 28, 28), generator=generator(seed, "pass", m))
        for i in range(len(images)):
            with torch.no_grad():
                logits = network(u.apply(images[i : i + 1], theta))[0].double().numpy()
            table[m, i] = np.log(np.exp(logits) / np.exp(logits).sum())
    return table


def test_the_decision_is_the_largest_mean_of_log_softmaxes(network, images):
    table = oracle(network, U, images, 9)
    decision = apac.Classifier(network, U, rule=apac.FixedPasses(9)).decide(images)
    np.testing.assert_allclose(decision.log_scores, table.mean(0), atol=1e-5)
    np.testing.assert_allclose(decision.standard_errors, table.std(0, ddof=1) / 3, atol=1e-5)
    np.testing.assert_allclose(decision.probabilities, np.exp(table).mean(0), atol=1e-5)
    assert decision.labels.tolist() == table.mean(0).argmax(1).tolist()
    assert decision.passes.tolist() == [9] * 24
    assert decision.stopped == ("fixed",) * 24
    assert decision.log_scores.dtype == torch.float64


def test_product_and_sum_differ_where_one_pass_is_sure_that_a_class_is_impossible():
    """Class 0: probability 0.9, 0.9, 1e-9. Class 1: the rest. The sum believes the majority, the product the veto."""
    probabilities = iter([0.9, 0.9, 1e-9])

    def network(images: Tensor) -> Tensor:
        p = next(probabilities)
        return torch.tensor([[p, 1 - p]], dtype=torch.float64).log()

    def decide(combine):
        return apac.Classifier(network, apac.Flip(), apac.FixedPasses(3), combine=combine, device_batch=1).decide(
            torch.zeros(1, 1, 4, 4)
        )

    assert decide("product").labels.tolist() == [1]
    probabilities = iter([0.9, 0.9, 1e-9])
    by_sum = decide("sum")
    assert by_sum.labels.tolist() == [0]
    assert by_sum.probabilities[0, 0].item() == pytest.approx(0.6)
    assert by_sum.standard_errors[0, 0].item() == pytest.approx(np.std([0.9, 0.9, 1e-9], ddof=1) / 3**0.5)


def test_top_k_ranks_the_classes(network, images):
    decision = apac.Classifier(network, U, rule=apac.FixedPasses(4)).decide(images)
    expected = np.argsort(-decision.log_scores.numpy(), axis=1, kind="stable")
    assert decision.top(3).tolist() == expected[:, :3].tolist()
    assert torch.equal(decision.top(1)[:, 0], decision.labels)
    with pytest.raises(apac.InputError, match="between 1 and the 10 classes"):
        decision.top(11)


def test_of_equal_classes_the_lower_number_comes_first():
    decision = apac.Classifier(lambda x: torch.zeros(len(x), 50), U, apac.FixedPasses(2)).decide(
        torch.rand(3, 1, 28, 28)
    )
    assert decision.top(50).tolist() == [list(range(50))] * 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("independent", [False, True])
def test_images_of_any_float_type_are_decided_by_a_float32_network(network, images, dtype, independent):
    classifier = apac.Classifier(network, U, apac.FixedPasses(3), independent=independent)
    labels = classifier.decide(images.to(dtype).float()).log_scores
    torch.testing.assert_close(classifier.decide(images.to(dtype)).log_scores, labels, atol=0.05, rtol=0)


@pytest.mark.parametrize("u", [U, apac.presets.cifar10(), PER_CLASS], ids=["mnist", "cifar10", "per-class"])
@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("device_batch", [1, 7, 24, 64, 1000])
def test_the_answer_does_not_depend_on_the_device_batch(network, images, device_batch, independent, u):
    def decide(batch):
        return apac.Classifier(
            network, u, rule=apac.FixedPasses(6), device_batch=batch, independent=independent
        ).decide(images)

    torch.testing.assert_close(decide(device_batch).log_scores, decide(200).log_scores, atol=2e-5, rtol=0)


@pytest.mark.parametrize("independent", [False, True])
def test_the_answer_for_an_image_does_not_depend_on_its_neighbors_or_place(network, images, independent):
    classifier = apac.Classifier(network, U, rule=apac.FixedPasses(5), independent=independent)
    together = classifier.decide(images).log_scores
    turned = classifier.decide(images.flip(0)).log_scores.flip(0)
    alone = torch.cat([classifier.decide(images[i : i + 1]).log_scores for i in range(len(images))])
    torch.testing.assert_close(together, turned, atol=2e-5, rtol=0)
    torch.testing.assert_close(together, alone, atol=2e-5, rtol=0)


def test_independent_draws_differ_from_image_to_image_and_shared_ones_do_not(images):
    """Two images that differ in one pixel are deformed alike by shared draws, and differently by their own."""
    seen: list[Tensor] = []

    def spy(virtual: Tensor) -> Tensor:
        seen.append(virtual.clone())
        return torch.zeros(len(virtual), 2)

    pair = images[:1].repeat(2, 1, 1, 1)
    pair[1, 0, 0, 0] = 0.001
    for independent, alike in ((False, True), (True, False)):
        seen.clear()
        apac.Classifier(spy, U, rule=apac.FixedPasses(1), independent=independent).decide(pair)
        assert torch.allclose(seen[0][0], seen[0][1], atol=0.01) == alike


@pytest.mark.parametrize("independent", [False, True])
def test_64_passes_are_the_first_64_of_128(network, images, independent):
    classifier = apac.Classifier(network, U, seed=3, independent=independent)
    few = images[:3]
    first, rest = classifier.score(few, 0, 64), classifier.score(few, 64, 128)
    whole = classifier.score(few, 0, 128)
    torch.testing.assert_close(first.merge(rest).log_sum, whole.log_sum, atol=1e-3, rtol=1e-6)
    by_rule = apac.Classifier(network, U, apac.FixedPasses(64), seed=3, independent=independent).decide(few)
    torch.testing.assert_close(by_rule.log_scores, first.log_mean, atol=1e-12, rtol=0)


def test_another_seed_gives_other_passes(network, images):
    first, second = (
        apac.Classifier(network, U, apac.FixedPasses(2), seed=seed).decide(images).log_scores for seed in (0, 1)
    )
    assert (first - second).abs().max() > 0.01


def test_no_two_passes_of_16384_have_the_same_parameters():
    corners = torch.stack(
        [apac.Homography().sample(1, (1, 4, 4), generator=generator(0, "pass", m)).matrix[0] for m in range(16_384)]
    )
    assert len(torch.unique(corners.flatten(1), dim=0)) == 16_384


def numbers_alive() -> int:
    """How many numbers all tensors hold together, views counted once."""
    storages = {
        thing.untyped_storage().data_ptr(): thing.untyped_storage().nbytes() // 4
        for thing in gc.get_objects()
        if type(thing) is Tensor and not thing.is_meta
    }
    return sum(storages.values())


def most_alive(images: int, passes: int, classes: int, independent: bool) -> int:
    """The most numbers alive at any call of the network, the given images aside."""
    alive: list[int] = []

    def network(virtual: Tensor) -> Tensor:
        alive.append(numbers_alive())
        return virtual.flatten(1)[:, :1].expand(-1, classes)

    given = torch.rand(images, 1, 8, 8)
    gc.collect()
    before = numbers_alive()
    u = apac.Elastic(sigma=1.0, alpha=1.0)
    apac.Classifier(network, u, apac.FixedPasses(passes), device_batch=50, independent=independent).decide(given)
    return max(alive) - before


@pytest.mark.parametrize("independent", [False, True])
@pytest.mark.parametrize("images", [3, 50])
def test_memory_does_not_grow_with_the_number_of_passes(images, independent):
    """Many classes and small images: a kept pass would weigh more than anything else."""
    few, many = (most_alive(images, passes, 500, independent) for passes in (40, 200))
    assert many <= 1.05 * few


@pytest.mark.parametrize("independent", [False, True])
def test_beyond_the_result_memory_does_not_grow_with_the_images(independent):
    few, many = (most_alive(images, 3, 2, independent) for images in (100, 1000))
    scores = 8 * 8 * 900 * 2  # the running sums in double precision, old and new
    assert many - few < scores + 50 * 64


@pytest.mark.parametrize("rule", [apac.FixedPasses(1), apac.FixedPasses(8)])
@pytest.mark.parametrize("combine", ["product", "sum"])
@pytest.mark.parametrize("u", [apac.Compose(), apac.PerClass({}, default=apac.Compose(), classes=10)])
def test_the_identity_deformation_gives_the_plain_prediction(network, images, rule, combine, u):
    classifier = apac.Classifier(network, u, rule, combine=combine)
    decision, plain = classifier.decide(images), classifier.plain(images)
    torch.testing.assert_close(decision.log_scores, plain, atol=1e-5, rtol=0)
    assert torch.equal(decision.labels, plain.argmax(1))
    with torch.no_grad():
        assert torch.equal(decision.labels, network(images).argmax(1))


def test_per_class_with_the_same_deformation_everywhere_gives_exactly_the_class_indistinctive_answer(network, images):
    alike = apac.PerClass(dict.fromkeys(range(10), U), classes=10)
    decisions = [apac.Classifier(network, u, apac.FixedPasses(7), seed=2).decide(images) for u in (U, alike)]
    assert torch.equal(decisions[0].log_scores, decisions[1].log_scores)
    assert torch.equal(decisions[0].standard_errors, decisions[1].standard_errors)


def test_class_distinctive_scores_come_from_the_passes_of_each_class_own_set(network, images):
    gentle = apac.Homography(std=0.02)
    u = apac.PerClass({1: gentle, 7: gentle}, default=U, classes=10)
    own = np.isin(np.arange(10), [1, 7])
    expected = np.where(own, oracle(network, gentle, images, 5).mean(0), oracle(network, U, images, 5).mean(0))
    decision = apac.Classifier(network, u, apac.FixedPasses(5)).decide(images)
    np.testing.assert_allclose(decision.log_scores, expected, atol=1e-5)
    assert decision.labels.tolist() == expected.argmax(1).tolist()


def test_logits_of_any_size_are_handled_in_float64():
    """Float32 would round log-probabilities of -300 to 3e-5; here they come from a float32 network exactly."""
    logits = torch.tensor([[0.0, -300.0, 40.0]])
    decision = apac.Classifier(lambda x: logits.expand(len(x), 3), U, apac.FixedPasses(16)).decide(
        torch.rand(1, 1, 28, 28)
    )
    assert decision.log_scores[0].tolist() == pytest.approx([-40.0, -340.0, 0.0], abs=1e-12)


def test_a_network_in_training_mode_is_used_in_evaluation_mode_and_given_back(images):
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Dropout(0.5), nn.Linear(784, 4))
    network[1].eval()
    statistics = network[1].running_mean.clone()
    network.train()
    network[1].eval()  # a frozen layer stays frozen
    classifier = apac.Classifier(network, apac.Compose(), apac.FixedPasses(2))
    assert torch.equal(classifier.decide(images).log_scores, classifier.decide(images).log_scores)
    assert [part.training for part in network] == [True, False, True, True]
    assert torch.equal(network[1].running_mean, statistics)


def test_no_images_make_an_empty_decision(network):
    decision = apac.Classifier(network, U, apac.FixedPasses(3)).decide(torch.zeros(0, 1, 28, 28))
    assert decision.labels.shape == (0,)
    assert decision.log_scores.shape == (0, 10)
    assert apac.Classifier(network, U).plain(torch.zeros(0, 1, 28, 28)).shape == (0, 10)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: apac.FixedPasses(0), "passes of a FixedPasses must be a whole number of at least 1, got 0"),
        (lambda: apac.FixedPasses("4"), "must be a whole number of at least 1, got '4'"),
        (lambda: apac.FixedPasses(2.5), "must be a whole number of at least 1"),
        (lambda: apac.FixedPasses(True), "must be a whole number of at least 1"),
        (lambda: apac.Classifier(len, U, seed=None), "seed of a Classifier must be a whole number"),
        (lambda: apac.Classifier("cnn", U), "the network must be callable"),
        (lambda: apac.Classifier(len, "mnist"), "needs a Deformation"),
        (
            lambda: apac.Classifier(len, U, rule=256),
            r"the rule must be one such as Certified\(\) or FixedPasses\(256\), got 256",
        ),
        (lambda: apac.Classifier(len, U, rule=apac.Certified), "the rule must be one such as"),
        (lambda: apac.Classifier(len, U, combine="mean"), '"product" or "sum"'),
        (
            lambda: apac.Classifier(len, U, device_batch=0),
            "device_batch of a Classifier must be a whole number of at least 1",
        ),
        (lambda: apac.Classifier(len, U).score(torch.zeros(1, 1, 2, 2), 5, 5), "0 <= start < stop"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_sentence(make, sentence):
    with pytest.raises(apac.InputError, match=sentence):
        make()


def broken(value: float) -> Tensor:
    images = torch.zeros(9, 1, 28, 28)
    images[6, 0, 3, 3] = value
    return images


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (broken(float("nan")), "image 6 has NaN or infinite pixels"),
        (broken(float("inf")), "image 6 has NaN or infinite pixels"),
        (torch.zeros(2, 3, 28, 28), r"must have the shape \(N, 1, 28, 28\), got \(2, 3, 28, 28\)"),
        (torch.zeros(2, 0, 28, 28), r"got torch.float32 \(2, 0, 28, 28\)"),
        (torch.zeros(28, 28), r"shape \(N, C, H, W\)"),
        (torch.zeros(1, 1, 28, 28, dtype=torch.uint8), "floating-point"),
        ([[0.0]], "got list"),
    ],
)
def test_wrong_images_are_refused_in_one_sentence(network, images, sentence):
    classifier = apac.Classifier(network, U, apac.FixedPasses(1), image_shape=(1, 28, 28), device_batch=4)
    for call in (classifier.decide, classifier.plain):
        with pytest.raises(apac.InputError, match=sentence):
            call(images)


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        (lambda x: torch.zeros(len(x)), "must return logits of shape"),
        (lambda x: torch.zeros(3, 10), "must return logits of shape"),
        (lambda x: "nine", "must return logits of shape .*, got str"),
    ],
)
def test_a_network_that_does_not_return_logits_is_refused_in_one_sentence(network, sentence, images):
    with pytest.raises(apac.InputError, match=sentence):
        apac.Classifier(network, U, apac.FixedPasses(1)).decide(images)


def test_per_class_for_another_number_of_classes_is_refused(network, images):
    u = apac.PerClass({0: U}, default=apac.Compose(), classes=3)
    with pytest.raises(apac.InputError, match="made for 3 classes, but the network has 10 outputs"):
        apac.Classifier(network, u, apac.FixedPasses(1)).decide(images)
