"""Outputs and inputs of a network, and its state after a decision."""

from __future__ import annotations

import logging
import math
import re

import pytest
import torch
from torch import Tensor, nn

import apac
from apac.classify import network_outputs

RULE = apac.FixedPasses(8)


@pytest.fixture
def images(random) -> Tensor:
    return torch.rand(9, 1, 6, 6, generator=random)


@pytest.fixture
def weights(random) -> Tensor:
    return torch.randn(36, 4, generator=random)


@pytest.mark.parametrize(
    ("outputs", "last"),
    [("probabilities", lambda x: x.softmax(1)), ("log-probabilities", lambda x: x.log_softmax(1))],
)
@pytest.mark.parametrize("combine", ["product", "sum"])
def test_logits_probabilities_and_log_probabilities_give_the_same_decision(outputs, last, combine, images, weights):
    u = apac.Homography()
    logits = apac.Classifier(lambda x: x.flatten(1) @ weights, u, RULE, combine=combine)
    other = apac.Classifier(lambda x: last(x.flatten(1) @ weights), u, RULE, combine=combine, outputs=outputs)
    # A float32 probability has 7 digits, and so has its logarithm.
    torch.testing.assert_close(other.decide(images).log_scores, logits.decide(images).log_scores, atol=1e-4, rtol=0)
    torch.testing.assert_close(other.plain(images), logits.plain(images), atol=1e-4, rtol=0)


def test_a_probability_of_zero_counts_as_the_smallest_normal_float32(images):
    network = lambda x: torch.tensor([1.0, 0.0]).expand(len(x), 2)  # noqa: E731
    decision = apac.Classifier(network, apac.Compose(), RULE, outputs="probabilities").decide(images)
    assert decision.labels.tolist() == [0] * 9
    torch.testing.assert_close(
        decision.log_scores[:, 1], torch.full((9,), -87.3365, dtype=torch.float64), atol=1e-3, rtol=0
    )


@pytest.mark.parametrize("outputs", ["probabilities", "log-probabilities"])
def test_outputs_that_are_not_probabilities_are_rejected(outputs, images, weights):
    classifier = apac.Classifier(lambda x: x.flatten(1) @ weights, apac.Compose(), RULE, outputs=outputs)
    with pytest.raises(apac.InputError, match=rf"the network does not return {outputs}: .*outputs=\"logits\""):
        classifier.decide(images)
    with pytest.raises(
        apac.InputError, match="outputs must be one of 'logits', 'probabilities', 'log-probabilities', got 'scores'"
    ):
        apac.Classifier(lambda x: x, apac.Compose(), outputs="scores")  # type: ignore[arg-type]


def test_a_log_probability_of_minus_infinity_counts_as_a_probability_of_zero(images):
    network = lambda x: torch.tensor([0.0, -torch.inf]).expand(len(x), 2)  # noqa: E731
    decision = apac.Classifier(network, apac.Compose(), RULE, outputs="log-probabilities").decide(images)
    assert decision.labels.tolist() == [0] * 9


def test_log_probabilities_keep_their_order_below_the_smallest_probability_of_float32(images):
    network = lambda x: torch.tensor([0.0, -300.0, -200.0]).expand(len(x), 3)  # noqa: E731
    decision = apac.Classifier(network, apac.Compose(), RULE, outputs="log-probabilities").decide(images)
    assert decision.log_scores[0].tolist() == [0.0, -300.0, -200.0]


def test_probabilities_in_half_precision_are_accepted(images, weights):
    for dtype in (torch.float16, torch.bfloat16):
        network = lambda x, dtype=dtype: (x.flatten(1) @ weights).softmax(1).to(dtype)  # noqa: E731
        assert len(apac.Classifier(network, apac.Flip(), RULE, outputs="probabilities").decide(images).labels) == 9


def test_a_deformation_that_changes_the_number_of_images_or_their_type_is_rejected(images, weights):
    class Wrong(apac.Deformation):
        def __init__(self, change):
            self.change = change

        def sample(self, n, image_shape, *, generator):
            return torch.zeros(n)

        def apply(self, images, parameters):
            return self.change(images)

    for change, got in ((lambda x: torch.cat([x, x]), r"\(144, 1, 6, 6\)"), (lambda x: x.long(), "torch.int64")):
        with pytest.raises(
            apac.InputError, match=f"Wrong.apply must return 72 floating-point images for 72, got .*{got}"
        ):
            apac.Classifier(lambda x: x.flatten(1) @ weights, Wrong(change), RULE).decide(images)


def test_nan_among_probabilities_stops_that_image_alone(images):
    def network(x: Tensor) -> Tensor:
        probabilities = torch.tensor([0.75, 0.25]).repeat(len(x), 1)
        probabilities[(x == images[3]).flatten(1).all(1)] = torch.nan
        return probabilities

    decision = apac.Classifier(network, apac.Compose(), RULE, outputs="probabilities").decide(images)
    assert decision.labels.tolist() == [0, 0, 0, -1, 0, 0, 0, 0, 0]


def test_a_module_in_training_mode_is_evaluated_in_evaluation_mode_and_restored(images):
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Dropout(0.5), nn.Linear(36, 3))
    network[2].eval()  # a frozen layer stays frozen
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    classifier = apac.Classifier(network, apac.Flip(), RULE)
    together = classifier.decide(images)
    alone = classifier.decide(images[4:5])
    torch.testing.assert_close(alone.log_scores, together.log_scores[4:5], atol=1e-4, rtol=0)
    assert [part.training for part in network] == [True, True, False, True] and network.training
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(parameter.grad is None and parameter.requires_grad for parameter in network.parameters())


def test_images_are_converted_to_the_type_of_the_weights(images):
    seen = set()

    class Double(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.add(x.dtype)
            return super().forward(x.flatten(1))

    assert apac.Classifier(Double(36, 3).double(), apac.Flip(), RULE).decide(images).passes.tolist() == [8] * 9
    assert seen == {torch.float64}


@pytest.mark.parametrize("how", ["in a function", "by its forward method"])
def test_modules_called_by_another_callable_are_in_evaluation_mode_too(how, images):
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(36), nn.Dropout(0.5), nn.Linear(36, 3))
    network = (lambda x: module(x)) if how == "in a function" else module.forward
    decision = apac.Classifier(network, apac.Flip(), RULE).decide(images)
    assert module[1].num_batches_tracked == 0 and all(part.training for part in module)
    expected = apac.Classifier(module, apac.Flip(), RULE).decide(images)
    torch.testing.assert_close(decision.log_scores, expected.log_scores, atol=1e-4, rtol=0)
    assert module(images).requires_grad and module[1].num_batches_tracked == 1  # as before


@pytest.mark.parametrize(
    "u",
    [apac.Compose(), apac.PerClass({1: apac.Flip(1.0)}, default=apac.Compose(), classes=4)],
    ids=["identity", "per class"],
)
@pytest.mark.parametrize("count", [1, 9])
def test_a_network_that_works_in_place_changes_no_other_result(u, count, images, weights):
    given = images[:count].clone()
    in_place = apac.Classifier(lambda x: x.sub_(0.5).div_(0.25).flatten(1) @ weights, u, RULE)
    pure = apac.Classifier(lambda x: ((x - 0.5) / 0.25).flatten(1) @ weights, u, RULE)
    torch.testing.assert_close(in_place.decide(given).log_scores, pure.decide(given).log_scores, atol=1e-4, rtol=0)
    torch.testing.assert_close(in_place.plain(given), pure.plain(given), atol=1e-4, rtol=0)
    assert torch.equal(given, images[:count])


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        (lambda x: torch.zeros(len(x)), r"logits of shape \(N, classes\), got one number for each image; .* \(0, z\)"),
        (lambda x: torch.zeros(3, 10), r"logits of shape \(N, classes\), got \(3, 10\) for 2 images"),
        (
            lambda x: {"logits": x.flatten(1)},
            r"got dict; wrap it, for example by lambda images: network\(images\).logits",
        ),
        (lambda x: x.flatten(1)[:, :1], r"with at least two classes, got 1; .* \(0, z\)"),
        (lambda x: x.flatten(1)[:, :0], "with at least two classes, got 0"),
        (lambda x: x.flatten(1).to(torch.complex64), "must return real numbers, got torch.complex64"),
        (lambda x: x.flatten(1)[:, : 2 + len(x)], "the same number of classes for all images"),
    ],
)
def test_outputs_of_a_wrong_shape_or_type_are_rejected_in_one_sentence(network, sentence, images):
    with pytest.raises(apac.InputError, match=sentence):
        apac.Classifier(network, apac.Flip(), RULE, device_batch=2).decide(images)


def test_the_advice_for_a_single_probability_gives_the_decision_of_the_classifier(images, weights):
    one = nn.Sequential(nn.Flatten(), nn.Linear(weights.shape[0], 1), nn.Sigmoid())
    with pytest.raises(apac.InputError, match=re.escape("return both: torch.cat([1 - p, p], dim=1)")):
        apac.Classifier(one, apac.Compose(), RULE, outputs="probabilities").decide(images)
    both = apac.Classifier(lambda x: torch.cat([1 - one(x), one(x)], 1), apac.Compose(), RULE, outputs="probabilities")
    assert torch.equal(both.decide(images).labels, (one(images) > 0.5).long().flatten())


def test_logits_that_look_like_probabilities_are_warned_about_once(images, weights, caplog):
    network_outputs._warn_about_probabilities.cache_clear()
    softmax = apac.Classifier(lambda x: (x.flatten(1) @ weights).softmax(1), apac.Flip(), RULE)
    with caplog.at_level(logging.WARNING, "apac"):
        apac.Classifier(lambda x: x.flatten(1) @ weights, apac.Flip(), RULE).decide(images)
        assert not caplog.messages
        softmax.decide(images)
        softmax.decide(images)
    (message,) = caplog.messages
    assert message.endswith('If the network ends in a softmax, pass outputs="probabilities".')


def test_a_logit_of_minus_infinity_masks_a_class(images, weights):
    masked = lambda x: (x.flatten(1) @ weights).index_fill(1, torch.tensor([1]), -math.inf)  # noqa: E731
    logits = apac.Classifier(masked, apac.Flip(), RULE).decide(images)
    expected = apac.Classifier(lambda x: masked(x).log_softmax(1), apac.Flip(), RULE, outputs="log-probabilities")
    # That network rounds its log-probabilities, of up to 20, to float32.
    torch.testing.assert_close(logits.log_scores, expected.decide(images).log_scores, atol=1e-5, rtol=0)
    assert (logits.labels >= 0).all()
    nothing = apac.Classifier(lambda x: torch.full((len(x), 3), -math.inf), apac.Flip(), RULE).decide(images)
    assert set(nothing.stopped) == {"nan"}


def test_a_number_of_classes_that_changes_between_passes_is_rejected(images):
    calls = iter(range(2, 100))
    with pytest.raises(apac.InputError, match="the same number of classes for all images"):
        apac.Classifier(lambda x: x.flatten(1)[:, : next(calls)], apac.Flip(), RULE, device_batch=9).decide(images)


def test_integers_zero_and_one_are_accepted_as_probabilities(images):
    network = lambda x: torch.tensor([0, 1]).expand(len(x), 2)  # noqa: E731
    decision = apac.Classifier(network, apac.Flip(), RULE, outputs="probabilities").decide(images)
    assert decision.labels.tolist() == [1] * 9
