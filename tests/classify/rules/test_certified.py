"""The certified rule: its error holds however one looks, and a plain reading of it in numpy decides alike."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import apac
from apac import models
from apac.classify.rules.certified import SHARES, STAKES, BettingState
from apac.randomness import generator
from kinds import PER_CLASS

U = apac.presets.mnist()


@pytest.fixture(scope="module")
def network() -> nn.Module:
    """A network with large and small margins."""
    network = models.build("mnist-cnn", generator=generator(5, "test", 0)).eval()
    with torch.no_grad():
        last = [part for part in network.modules() if isinstance(part, nn.Linear)][-1]
        last.weight *= 6
    return network


@pytest.fixture
def images(digits: tuple[Tensor, Tensor]) -> Tensor:
    return digits[0][:24]


# Nulls: class 1 has the largest expectation, though class 0 has the same. Differences z_0 - z_1, (n,).
LAWS: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "gaussian": lambda n, g: 10 * torch.randn(n, generator=g, dtype=torch.float64),
    "skewed": lambda n, g: torch.where(torch.rand(n, generator=g) < 0.9, 3.0, -27.0).double(),
    # a Pareto law with exponent 1.5, whose variance is infinite, less its mean 3: never below -20
    "heavy-tailed": lambda n, g: 10 * ((1 - torch.rand(n, generator=g, dtype=torch.float64)) ** (-1 / 1.5) - 3),
}


def decide_noise(law, count: int, rule: apac.Certified, seed=0, classes=2, combine="product") -> apac.Decision:
    """Decide images about whose classes 0 and 1 every pass says something else; the other classes are far behind."""
    random = generator(seed, "test", 0)

    def network(images: Tensor) -> Tensor:
        logits = torch.full((len(images), classes), -12.0, dtype=torch.float64)
        logits[:, 0], logits[:, 1] = law(len(images), random), 0.0
        return logits

    classifier = apac.Classifier(network, apac.Compose(), rule, device_batch=count, combine=combine)
    return classifier.decide(torch.zeros(count, 1, 1, 1))


def false_certifications(law, count: int, error: float) -> int:
    decision = decide_noise(law, count, apac.Certified(error=error, limit=1024))
    each = zip(decision.stopped, decision.labels.tolist(), strict=True)
    return sum(why == "certified" and label == 0 for why, label in each)


def most(count: int, error: float) -> int:
    """How many of so many images may be wrong at this error, but for one chance in 10,000."""
    return int(stats.binom.ppf(0.9999, count, error))


@pytest.mark.parametrize("error", [0.05, 0.001])
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_a_false_certification_is_as_rare_as_stated(law, error):
    assert false_certifications(law, 4000, error) <= most(4000, error)


def peeks(bets: BettingState, values: Tensor, leaders: Tensor) -> BettingState:
    """A t-test of all passes so far, after every batch. The sums that it needs are kept where the wealth was."""
    sums = bets.log_wealth[:, :, :2] + torch.stack(
        [values[:, :, :1] - values, (values[:, :, :1] - values) ** 2], 3
    ).sum(0)
    passes = bets.log_wealth[0, 0, 2] + len(values)
    mean = sums[:, :, 0] / passes
    error = ((sums[:, :, 1] / passes - mean**2) / (passes - 1)).sqrt()
    ahead = torch.where(leaders == 0, 1.0, -1.0)[:, None] * mean / error  # of the leader, over each class
    wealth = torch.cat([sums, passes.expand(len(leaders), 2, 8)], dim=2)
    alive = bets.alive & ~(ahead > stats.norm.isf(bets.error))
    return replace(bets, leaders=leaders, alive=alive, log_wealth=wealth)


def forgets_the_weights(bets: BettingState, values: Tensor, leaders: Tensor) -> BettingState:
    after = RIGHT(bets, values, leaders)
    return replace(after, alive=bets.alive & (after.log_wealth.logsumexp(2) < -math.log(bets.error)))


def picks_the_leader_after_the_batch(bets: BettingState, values: Tensor, leaders: Tensor) -> BettingState:
    return RIGHT(replace(bets, leaders=leaders), values, leaders)


RIGHT = BettingState.update


@pytest.mark.parametrize("law", ["gaussian", "skewed"])
@pytest.mark.parametrize("broken", [peeks, forgets_the_weights, picks_the_leader_after_the_batch])
def test_a_rule_that_is_broken_certifies_falsely_too_often(broken, law, monkeypatch):
    """So that the test above can fail: it does for the mistakes that one makes."""
    monkeypatch.setattr(BettingState, "update", broken)
    assert false_certifications(LAWS[law], 4000, 0.05) > most(4000, 0.05)


@pytest.mark.parametrize("classes", [2, 10])
def test_a_false_certification_is_as_rare_with_more_classes_and_the_bound_is_not_idle(classes):
    """Of two equal classes either may be certified in error: with twice the chance, which comes near."""
    count = 4000
    decision = decide_noise(LAWS["gaussian"], count, apac.Certified(error=0.05, limit=1024), seed=1, classes=classes)
    assert 0.2 * 0.05 * count <= decision.stopped.count("certified") <= most(count, 2 * 0.05)


def test_a_clear_image_is_certified_soon_and_rightly():
    def law(n, g):
        return 12 + 4 * torch.randn(n, generator=g, dtype=torch.float64)

    decision = decide_noise(law, 500, apac.Certified(error=1e-4))
    assert set(decision.stopped) == {"certified"}
    assert (decision.labels == 0).all()
    assert decision.passes.double().median() == 32
    assert decision.passes.max() <= 64


def oracle(table: np.ndarray, plain: np.ndarray, rule: apac.Certified, clip: float) -> tuple[int, str, int, int]:
    """One image, values (M, K) that rank the classes: passes, why it stopped, its label and the clipped passes. The
    wealth of each bet as a product, one pass after the other."""
    stakes = [0.95 / clip * 2.0**-g for g in range(10)]
    shares = [1 / 2] + [1 / 18] * 9
    classes = range(table.shape[1])
    wealth = np.ones((table.shape[1], 10))
    alive, leader, clipped = set(classes), int(plain.argmax()), 0
    for m in range(rule.limit):
        differences = [table[m, leader] - table[m, b] for b in classes]
        clipped += any(differences[b] < -clip for b in alive)
        for b in classes:
            wealth[b] *= [1 + stake * max(differences[b], -clip) for stake in stakes]
        if (m + 1) % 16 == 0 or m + 1 == rule.limit:
            alive -= {b for b in classes if b != leader and np.dot(shares, wealth[b]) >= 1 / rule.error}
            leader = int(table[: m + 1].mean(0).argmax())
            if alive == {leader}:
                return m + 1, "certified", leader, clipped
            if not alive:
                return m + 1, "limit", leader, clipped
    return rule.limit, "limit", leader, clipped


@pytest.mark.parametrize("combine", ["product", "sum"])
@pytest.mark.parametrize("u", [U, PER_CLASS], ids=["class-indistinctive", "class-distinctive"])
@pytest.mark.parametrize("rule", [apac.Certified(0.01, limit=200), apac.Certified(0.3, limit=40, clip=8.0)], ids=str)
def test_decisions_are_those_of_the_rule_read_plainly(network, images, rule, u, combine):
    classifier = apac.Classifier(network, u, rule, combine=combine, seed=4)
    decision, plain = classifier.decide(images), classifier.plain(images).numpy()
    table = np.stack([classifier.score(images, m, m + 1).log_mean.numpy() for m in range(rule.limit)])
    values, clip = (table, rule.clip) if combine == "product" else (np.exp(table), 1.0)
    expected = [oracle(values[:, i], plain[i], rule, clip) for i in range(len(images))]
    got = zip(
        decision.passes.tolist(), decision.stopped, decision.labels.tolist(), decision.clipped.tolist(), strict=True
    )
    assert list(got) == expected
    if combine == "product":
        assert {why for _, why, _, _ in expected} == {"certified", "limit"}
        assert (decision.clipped.sum() > 0) == (rule.clip == 8.0)
    else:
        assert "certified" in decision.stopped
        assert decision.clipped.sum() == 0


def test_product_and_sum_are_each_certified_by_what_ranks_their_own_classes():
    """Class 0 is ahead by little, and now and then impossible: the sum believes the many, the product the few."""

    def law(n, g):
        return torch.where(torch.rand(n, generator=g) < 0.8, 2.0, -27.0).double()

    for combine, label in (("product", 1), ("sum", 0)):
        decision = decide_noise(law, 50, apac.Certified(error=0.01), combine=combine)
        assert set(decision.stopped) == {"certified"}
        assert set(decision.labels.tolist()) == {label}


def test_a_table_of_values_is_decided_by_the_classifier_as_by_the_oracle_beyond_256_passes(random):
    """Nobody is certain soon, some become hopeless, and some go on together after they were put off."""
    passes, count, classes = 640, 90, 3
    rule = apac.Certified(error=0.3, limit=passes - 5, clip=6.0)
    drift = torch.randn(passes // 40, count, classes, generator=random, dtype=torch.float64).repeat_interleave(40, 0)
    values = 0.5 * drift + torch.randn(passes, count, classes, generator=random, dtype=torch.float64)
    table = values.log_softmax(2)
    asked = torch.zeros(count, dtype=torch.int64)

    def network(images: Tensor) -> Tensor:
        said = []
        for i in images[:, 0, 0, 0].long().tolist():  # the plain pass first, then one after the other
            said.append(values[max(0, int(asked[i]) - 1), i])
            asked[i] += 1
        return torch.stack(said)

    decision = apac.Classifier(network, apac.Compose(), rule, device_batch=4).decide(numbered(count))
    expected = [oracle(table[:, i].numpy(), table[0, i].numpy(), rule, rule.clip) for i in range(count)]
    got = zip(
        decision.passes.tolist(), decision.stopped, decision.labels.tolist(), decision.clipped.tolist(), strict=True
    )
    assert list(got) == expected
    assert any(m < rule.limit and why == "limit" for m, why, _, _ in expected)  # hopeless
    assert sum(256 < m < rule.limit for m, _, _, _ in expected) > 2


def test_classes_that_fall_behind_and_catch_up_and_passes_beyond_the_clip_are_judged_as_the_rule_says(random):
    """Values that wander and leap: classes are eliminated, come back to no avail, and go beyond the clip when dead."""
    passes, count, classes = 320, 300, 4
    rule = apac.Certified(error=0.2, limit=passes, clip=6.0)
    drift = torch.randn(passes // 40, count, classes, generator=random, dtype=torch.float64).repeat_interleave(40, 0)
    values = 2 * drift + torch.randn(passes, count, classes, generator=random, dtype=torch.float64)
    values += 40 * (torch.rand(passes, count, classes, generator=random) < 0.01)
    plain = torch.randn(count, classes, generator=random, dtype=torch.float64)

    bets = rule.init(count, lambda: plain, math.inf)
    found: dict[int, tuple[int, str, int, int]] = {}
    for m in range(16, passes + 1, 16):
        leaders = values[:m].mean(0).argmax(1)
        bets = bets.update(values[m - 16 : m], leaders)
        for i in range(count):
            why = "certified" if bets.decided[i] else "limit" if bets.undecidable[i] or m == passes else ""
            if why and i not in found:
                found[i] = (m, why, int(leaders[i]), int(bets.clipped[i]))
    expected = [oracle(values[:, i].numpy(), plain[i].numpy(), rule, rule.clip) for i in range(count)]
    assert [found[i] for i in range(count)] == expected
    early = [why for m, why, _, _ in expected if m < passes]
    assert {"certified", "limit"} == set(early)  # all classes of some image were eliminated
    assert sum(clipped > 0 for _, _, _, clipped in expected) > 30


@pytest.mark.parametrize("lead", [4.0, 12.0, 29.0])
@pytest.mark.parametrize("error", [0.05, 1e-4])
def test_a_constant_lead_is_certain_when_the_bets_say_so_in_closed_form(lead, error):
    def wealth(passes):
        return sum((1 / 2 if g == 0 else 1 / 18) * (1 + 0.95 / 30 * 2.0**-g * lead) ** passes for g in range(10))

    expected = next(n for n in range(16, 2000, 16) if wealth(n) >= 1 / error)
    network = logits_of([[lead, 0.0]])
    decision = apac.Classifier(network, apac.Compose(), apac.Certified(error)).decide(numbered(1))
    assert decision.passes.tolist() == [expected]


@pytest.mark.parametrize("combine", ["product", "sum"])
@pytest.mark.parametrize("u", [U, PER_CLASS], ids=["class-indistinctive", "class-distinctive"])
def test_a_certified_decision_is_a_prefix_of_the_fixed_one_with_the_same_seed(network, images, u, combine):
    rule = apac.Certified(error=0.01, limit=250)
    decision = apac.Classifier(network, u, rule, seed=2, combine=combine).decide(images)
    assert len(decision.passes.unique()) > 2
    for passes in decision.passes.unique().tolist():
        fixed = apac.Classifier(network, u, apac.FixedPasses(passes), seed=2, combine=combine).decide(images)
        rows = decision.passes == passes
        for name in (
            "labels",
            "log_scores",
            "probabilities",
            "standard_errors",
            "runners_up",
            "margins",
            "margin_errors",
        ):
            torch.testing.assert_close(
                getattr(decision, name)[rows], getattr(fixed, name)[rows], atol=1e-4, rtol=0, equal_nan=True
            )


@pytest.mark.parametrize("independent", [False, True])
def test_an_answer_depends_neither_on_the_device_batch_nor_on_the_neighbors(network, images, independent):
    def decide(some, batch):
        rule = apac.Certified(error=0.01, limit=250)
        return apac.Classifier(network, U, rule, device_batch=batch, independent=independent).decide(some)

    together = decide(images, 128)
    for other, rows in (
        (decide(images, 1), slice(None)),
        (decide(images, 7), slice(None)),
        (decide(images[5:6], 128), slice(5, 6)),
        (decide(images[[3, 20]], 3), [3, 20]),
    ):
        assert other.passes.tolist() == together.passes[rows].tolist()
        assert other.labels.tolist() == together.labels[rows].tolist()
        torch.testing.assert_close(other.margins, together.margins[rows], atol=1e-4, rtol=0)


def test_decided_images_get_no_more_passes(images):
    """Half of the images are clear, half are noise: the clear ones cost what they need."""
    random, seen = generator(0, "test", 0), []

    def network(virtual: Tensor) -> Tensor:
        seen.append(len(virtual))
        clear = virtual[:, 0, 0, 0] > 0
        logits = torch.zeros(len(virtual), 2, dtype=torch.float64)
        logits[:, 0] = torch.where(clear, 20.0, torch.randn(len(virtual), generator=random, dtype=torch.float64))
        return logits

    given = torch.zeros(64, 1, 1, 1)
    given[:60] = 1.0
    decision = apac.Classifier(network, apac.Compose(), apac.Certified(1e-4, limit=2048), device_batch=64).decide(given)
    assert decision.passes[:60].unique().tolist() == [32]
    assert decision.passes[60:].unique().tolist() == [2048]
    needed = int(decision.passes.sum()) + 64  # and the plain passes
    assert needed <= sum(seen) <= 1.1 * needed
    assert np.mean(seen) > 0.9 * 64  # and the network's batches are full
    seen.clear()
    apac.Classifier(network, apac.Compose(), apac.Certified(1e-4), device_batch=64).decide(given[:1])
    assert sum(seen) == 1 + 32


def test_images_that_are_left_of_several_groups_go_on_together_and_come_back_in_order(random):
    images = torch.rand(300, 1, 6, 6, generator=random) - 0.5
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).requires_grad_(False)
    network[1].weight.copy_(12 * torch.randn(4, 36, generator=random))
    rule, u = apac.Certified(error=0.1, limit=400), apac.Homography(std=0.05)
    small = apac.Classifier(network, u, rule, device_batch=8).decide(images)  # 128 go together
    large = apac.Classifier(network, u, rule).decide(images)
    left = [int((part > 256).sum()) for part in large.passes.split(128)]
    assert sum(0 < count <= 8 for count in left) >= 2, left
    assert small.labels.tolist() == large.labels.tolist()
    assert small.passes.tolist() == large.passes.tolist()
    assert small.stopped == large.stopped
    torch.testing.assert_close(small.log_scores, large.log_scores, atol=1e-4, rtol=0)
    torch.testing.assert_close(small.margin_errors, large.margin_errors, atol=1e-4, rtol=0)


def test_the_stakes_never_ruin_and_their_shares_are_all_there_is():
    assert STAKES.max() < 1
    assert SHARES.sum().item() == pytest.approx(1)
    assert len(STAKES) == len(SHARES)


def logits_of(rows: list[list[float]]) -> Callable[[Tensor], Tensor]:
    """A network that says the same of every image with pixel i, in all passes."""
    table = torch.tensor(rows, dtype=torch.float64)
    return lambda images: table[images[:, 0, 0, 0].round().long()]


def numbered(count: int) -> Tensor:
    return torch.arange(count, dtype=torch.float32).view(-1, 1, 1, 1)


def test_exact_ties_end_at_the_limit_with_a_margin_of_zero():
    network = logits_of([[2.0, 2.0, -9.0], [20.0, 0.0, 0.0]])
    decision = apac.Classifier(network, apac.Compose(), apac.Certified(limit=500)).decide(numbered(2))
    assert decision.stopped == ("limit", "certified")
    assert decision.labels.tolist() == [0, 0]
    assert decision.runners_up.tolist() == [1, 1]
    assert decision.passes.tolist() == [500, 32]
    assert decision.margins.tolist() == [0.0, pytest.approx(20.0)]
    assert decision.margin_errors.tolist() == [0.0, 0.0]


def test_two_classes_are_decided():
    decision = apac.Classifier(logits_of([[0.0, 15.0], [15.0, 0.0]]), apac.Compose()).decide(numbered(2))
    assert decision.labels.tolist() == [1, 0]
    assert decision.runners_up.tolist() == [0, 1]
    assert decision.stopped == ("certified",) * 2


def test_the_identity_deformation_gives_the_plain_prediction(network, images):
    classifier = apac.Classifier(network, apac.Compose(), apac.Certified(limit=64))
    decision = classifier.decide(images)
    assert torch.equal(decision.labels, classifier.plain(images).argmax(1))


@pytest.mark.parametrize("rule", [apac.Certified(0.01, limit=100), apac.FixedPasses(40)], ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_image_with_nan_in_some_pass_is_stopped_and_named_and_the_others_go_on(rule, value, caplog):
    calls = dict.fromkeys(range(4), 0)

    def network(images: Tensor) -> Tensor:
        logits = torch.zeros(len(images), 3, dtype=torch.float64)
        for row, number in enumerate(images[:, 0, 0, 0].long().tolist()):
            calls[number] += 1
            logits[row, number % 3] = 1.0 if number != 1 else 0.1
            if number == 2 and calls[number] >= (
                23 if isinstance(rule, apac.FixedPasses) else 24
            ):  # after a plain pass
                logits[row, 1] = value
        return logits

    with caplog.at_level(logging.WARNING, "apac"):
        decision = apac.Classifier(network, apac.Compose(), rule, device_batch=4).decide(numbered(4))
    assert decision.stopped[2] == "nan"
    assert decision.labels[2] == -1
    assert decision.passes[2] == 16
    assert decision.log_scores[2].isfinite().all()
    assert decision.margins[2].isnan()
    assert caplog.messages == [
        "the network returned NaN or an infinite logit for image 2 in pass 22: not decided, the other images go on."
    ]
    others = [0, 1, 3]
    assert decision.labels[others].tolist() == [0, 1, 0]
    assert "nan" not in [decision.stopped[i] for i in others]
    assert decision.passes[others].min() >= 40


def test_an_image_with_nan_in_the_first_pass_has_no_scores():
    network = logits_of([[0.0, 1.0], [0.0, math.nan]])
    decision = apac.Classifier(network, apac.Compose(), apac.Certified(limit=16)).decide(numbered(2))
    assert decision.stopped == ("limit", "nan")
    assert decision.labels.tolist() == [1, -1]
    assert decision.passes.tolist() == [16, 0]
    assert decision.log_scores[1].isnan().all()


@pytest.mark.parametrize("rule", [apac.Certified(limit=16), apac.FixedPasses(3)], ids=str)
def test_an_image_with_nan_is_treated_alike_alone_and_among_others(rule):
    classifier = apac.Classifier(logits_of([[0.0, math.nan]] * 3), apac.Compose(), rule)
    seen = []
    for images in (numbered(3), numbered(1)):
        decision = classifier.decide(images, progress=lambda task, done, total, note="": seen.append((done, total)))
        assert set(decision.stopped) == {"nan"}
        assert set(decision.labels.tolist()) == {-1}
        assert seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: apac.Certified(error=0), "error of a Certified must be a number above 0 and below 1, got 0"),
        (lambda: apac.Certified(error=1), "above 0 and below 1, got 1"),
        (lambda: apac.Certified(error=-0.1), "above 0 and below 1"),
        (lambda: apac.Certified(error=math.nan), "above 0 and below 1"),
        (lambda: apac.Certified(error="small"), "above 0 and below 1, got 'small'"),
        (lambda: apac.Certified(limit=15), "limit of a Certified must be a whole number of at least 16, got 15"),
        (lambda: apac.Certified(limit=100.0), "whole number of at least 16"),
        (lambda: apac.Certified(clip=0), "clip of a Certified must be a number above 0"),
        (lambda: apac.Certified(clip=math.inf), "clip of a Certified must be a number above 0"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_sentence(make, sentence):
    with pytest.raises(apac.InputError, match=sentence):
        make()


def test_no_images_make_an_empty_decision(network):
    decision = apac.Classifier(network, U).decide(torch.zeros(0, 1, 28, 28))
    assert decision.labels.shape == decision.margins.shape == decision.clipped.shape == (0,)
    assert decision.stopped == ()
