"""Scheduling of passes: the decision does not depend on the schedule, and no pass is wasted."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import apac
from apac.randomness import generator
from stub_networks import network_from_table, numbered_images

U = apac.Compose(apac.Homography(std=0.05), apac.Elastic(sigma=2.0, alpha=4.0))
PER_CLASS = apac.PerClass({1: apac.Homography(std=0.02), 3: apac.Compose()}, default=U, classes=4)


@pytest.fixture
def network(random: torch.Generator) -> nn.Module:
    """A network with large and small margins, in float64: rounding does not shift the pass that decides an image."""
    linear = nn.Linear(36, 4, bias=False, dtype=torch.float64).requires_grad_(False)
    linear.weight.copy_(24 * torch.randn(4, 36, generator=random))
    return nn.Sequential(nn.Flatten(), linear)


@pytest.fixture
def images(random: torch.Generator) -> Tensor:
    return torch.rand(300, 1, 6, 6, generator=random, dtype=torch.float64) - 0.5


@pytest.mark.parametrize(("u", "combine"), [(U, "product"), (PER_CLASS, "sum")])
def test_a_certified_decision_is_a_prefix_of_the_fixed_one_with_the_same_seed(network, images, u, combine):
    rule = apac.Certified(error=0.02, limit=100)
    decision = apac.Classifier(network, u, rule, seed=2, combine=combine).decide(images[:24])
    assert len(decision.passes.unique()) > 2
    for passes in decision.passes.unique().tolist():
        fixed = apac.Classifier(network, u, apac.FixedPasses(passes), seed=2, combine=combine).decide(images[:24])
        rows = decision.passes == passes
        for name in ("labels", "log_scores", "probabilities", "standard_errors", "runners_up", "margins"):
            torch.testing.assert_close(getattr(decision, name)[rows], getattr(fixed, name)[rows], atol=1e-9, rtol=0)
        torch.testing.assert_close(
            decision.margin_errors[rows], fixed.margin_errors[rows], atol=1e-9, rtol=0, equal_nan=True
        )


@pytest.mark.parametrize("independent", [False, True])
def test_an_answer_depends_neither_on_the_device_batch_nor_on_the_other_images(network, images, independent):
    def decide(images, batch):
        rule = apac.Certified(error=0.02, limit=100)
        return apac.Classifier(network, U, rule, device_batch=batch, independent=independent).decide(images[:24])

    together = decide(images[:24], 128)
    for other, rows in (
        (decide(images[:24], 5), slice(None)),
        (decide(images[5:6], 128), slice(5, 6)),
        (decide(images[[3, 10]], 1), [3, 10]),
    ):
        assert other.passes.tolist() == together.passes[rows].tolist()
        assert other.labels.tolist() == together.labels[rows].tolist()
        torch.testing.assert_close(other.margins, together.margins[rows], atol=1e-9, rtol=0)


def test_decided_images_get_no_more_passes():
    """Most images are clear, four are noise: the clear ones cost only the passes that they need."""
    random, batches = generator(0, "test", 0), []

    def network(virtual: Tensor) -> Tensor:
        batches.append(len(virtual))
        clear = virtual[:, 0, 0, 0] > 0
        logits = torch.zeros(len(virtual), 2, dtype=torch.float64)
        logits[:, 0] = torch.where(clear, 20.0, torch.randn(len(virtual), generator=random, dtype=torch.float64))
        return logits

    images = torch.zeros(64, 1, 1, 1)
    images[:60] = 1.0
    rule = apac.Certified(1e-4, limit=2048)
    decision = apac.Classifier(network, apac.Compose(), rule, device_batch=64).decide(images)
    assert decision.passes[:60].unique().tolist() == [32]
    assert decision.passes[60:].unique().tolist() == [2048]
    needed = int(decision.passes.sum()) + 64  # with the plain passes
    assert needed <= sum(batches) <= 1.1 * needed
    assert np.mean(batches) > 0.9 * 64  # the batches of the network are full
    batches.clear()
    apac.Classifier(network, apac.Compose(), apac.Certified(1e-4), device_batch=64).decide(images[:1])
    assert sum(batches) == 1 + 32


def test_the_rest_of_several_groups_is_merged_and_comes_back_in_order(network, images):
    rule, u = apac.Certified(error=0.1, limit=400), apac.Homography(std=0.03)
    small = apac.Classifier(network, u, rule, device_batch=8).decide(images)  # groups of 128 images
    large = apac.Classifier(network, u, rule).decide(images)
    left = [int((part > 256).sum()) for part in large.passes.split(128)]
    assert sum(0 < count <= 8 for count in left) >= 2, left
    assert small.labels.tolist() == large.labels.tolist()
    assert small.passes.tolist() == large.passes.tolist()
    assert small.stopped == large.stopped
    torch.testing.assert_close(small.log_scores, large.log_scores, atol=1e-9, rtol=0)
    torch.testing.assert_close(small.margin_errors, large.margin_errors, atol=1e-9, rtol=0)


def test_exact_ties_end_at_the_limit_with_a_margin_of_zero():
    network = network_from_table([[2.0, 2.0, -9.0], [20.0, 0.0, 0.0]])
    decision = apac.Classifier(network, apac.Compose(), apac.Certified(limit=500)).decide(numbered_images(2))
    assert decision.stopped == ("limit", "certified")
    assert decision.labels.tolist() == [0, 0]
    assert decision.runners_up.tolist() == [1, 1]
    assert decision.passes.tolist() == [500, 32]
    assert decision.margins.tolist() == [0.0, pytest.approx(20.0)]
    assert decision.margin_errors.tolist() == [0.0, 0.0]


def test_two_classes_are_decided():
    network = network_from_table([[0.0, 15.0], [15.0, 0.0]])
    decision = apac.Classifier(network, apac.Compose()).decide(numbered_images(2))
    assert decision.labels.tolist() == [1, 0]
    assert decision.runners_up.tolist() == [0, 1]
    assert decision.stopped == ("certified",) * 2


@pytest.mark.parametrize("rule", [apac.Certified(0.01, limit=100), apac.FixedPasses(40)], ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_image_with_nan_in_some_pass_stays_undecided_with_a_warning_and_the_others_continue(rule, value, caplog):
    calls = dict.fromkeys(range(4), 0)
    first = 23 if isinstance(rule, apac.FixedPasses) else 24  # a certified rule starts with a plain pass

    def network(images: Tensor) -> Tensor:
        logits = torch.zeros(len(images), 3, dtype=torch.float64)
        for row, number in enumerate(images[:, 0, 0, 0].long().tolist()):
            calls[number] += 1
            logits[row, number % 3] = 1.0 if number != 1 else 0.1
            if number == 2 and calls[number] >= first:
                logits[row, 1] = value
        return logits

    with caplog.at_level(logging.WARNING, "apac"):
        decision = apac.Classifier(network, apac.Compose(), rule, device_batch=4).decide(numbered_images(4))
    assert decision.stopped[2] == "nan"
    assert decision.labels[2] == -1
    assert decision.passes[2] == 16
    assert decision.log_scores[2].isfinite().all()
    assert decision.margins[2].isnan()
    (message,) = caplog.messages
    assert message.startswith("the network returned NaN or an infinite logit for image 2 in pass 22:")
    others = [0, 1, 3]
    assert decision.labels[others].tolist() == [0, 1, 0]
    assert "nan" not in [decision.stopped[i] for i in others]
    assert decision.passes[others].min() >= 40


def test_an_image_with_nan_in_the_first_pass_has_no_scores():
    network = network_from_table([[0.0, 1.0], [0.0, math.nan]])
    decision = apac.Classifier(network, apac.Compose(), apac.Certified(limit=16)).decide(numbered_images(2))
    assert decision.stopped == ("limit", "nan")
    assert decision.labels.tolist() == [1, -1]
    assert decision.passes.tolist() == [16, 0]
    assert decision.log_scores[1].isnan().all()


@pytest.mark.parametrize("rule", [apac.Certified(limit=16), apac.FixedPasses(3)], ids=str)
def test_progress_is_complete_even_if_all_images_have_nan(rule):
    classifier = apac.Classifier(network_from_table([[0.0, math.nan]] * 3), apac.Compose(), rule)
    seen: list[tuple[int, int]] = []
    for count in (3, 1):
        decision = classifier.decide(
            numbered_images(count), progress=lambda task, done, total, note="": seen.append((done, total))
        )
        assert set(decision.stopped) == {"nan"}
        assert set(decision.labels.tolist()) == {-1}
        assert seen[-1][0] == seen[-1][1]


@dataclass(frozen=True, eq=False)
class StableState:
    leaders: Tensor  # (n,)
    decided: Tensor  # (n,)
    clipped: Tensor  # (n,)

    @property
    def undecidable(self) -> Tensor:
        return torch.zeros_like(self.decided)

    def update(self, values: Tensor, leaders: Tensor) -> StableState:
        return StableState(leaders, leaders == self.leaders, self.clipped)


@dataclass(frozen=True)
class StableLeader:
    """Stops an image when two successive updates have the same leader."""

    limit: int = 64
    when_decided: ClassVar[str] = "stable"
    at_limit: ClassVar[str] = "limit"

    def next_passes(self, passes_done: int, fill: int) -> int:
        return min(16, self.limit - passes_done)

    def init(self, images: int, plain: Callable[[], Tensor], max_difference: float) -> StableState:
        zeros = torch.zeros(images, dtype=torch.int64)
        return StableState(zeros - 1, zeros.bool(), zeros)


def test_a_user_defined_rule_decides_when_to_stop():
    rule = StableLeader()
    assert isinstance(rule, apac.Rule)
    network = network_from_table([[0.0, 1.0], [1.0, 0.0]])
    decision = apac.Classifier(network, apac.Compose(), rule).decide(numbered_images(2))
    assert decision.passes.tolist() == [32, 32]
    assert decision.labels.tolist() == [1, 0]
    assert decision.stopped == ("stable", "stable")


def test_a_rule_that_schedules_no_passes_is_refused(monkeypatch):
    monkeypatch.setattr(StableLeader, "next_passes", lambda rule, passes_done, fill: 0)
    classifier = apac.Classifier(network_from_table([[0.0, 1.0]]), apac.Compose(), StableLeader())
    with pytest.raises(apac.InputError, match="must return at least 1 below its limit, got 0"):
        classifier.decide(numbered_images(1))
