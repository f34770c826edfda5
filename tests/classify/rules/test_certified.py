"""The certified rule: its error bound holds however often it is checked, and a plain reading in numpy agrees."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import apac
from apac import models
from apac.classify.rules.certified import SHARES, STAKES, BettingState
from apac.randomness import generator
from kinds import PER_CLASS
from stub_networks import network_from_table, numbered_images

U = apac.presets.mnist()
Outcome = tuple[int, str, int, int]  # passes, reason, label, clipped passes


@pytest.fixture(scope="module")
def network() -> nn.Module:
    """A network with large and small margins, in float64: rounding does not shift the pass that decides an image."""
    network = models.build("mnist-cnn", generator=generator(5, "test", 0)).double().eval()
    with torch.no_grad():
        last = [part for part in network.modules() if isinstance(part, nn.Linear)][-1]
        last.weight *= 6
    return network


@pytest.fixture
def images(digits: tuple[Tensor, Tensor]) -> Tensor:
    return digits[0][:12].double()


# Null hypotheses: class 1 has the largest expectation, and class 0 has the same one. Differences z_0 - z_1, (n,).
LAWS: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "gaussian": lambda n, g: 10 * torch.randn(n, generator=g, dtype=torch.float64),
    "skewed": lambda n, g: torch.where(torch.rand(n, generator=g) < 0.9, 3.0, -27.0).double(),
    # a Pareto law with exponent 1.5 and infinite variance, minus its mean 3: never below -20
    "heavy-tailed": lambda n, g: 10 * ((1 - torch.rand(n, generator=g, dtype=torch.float64)) ** (-1 / 1.5) - 3),
}


def decide_noise(law, count: int, rule: apac.Certified, seed=0, classes=2, combine="product") -> apac.Decision:
    """Decide images whose classes 0 and 1 differ by noise in every pass; the other classes are far behind."""
    random = generator(seed, "test", 0)

    def network(images: Tensor) -> Tensor:
        logits = torch.full((len(images), classes), -12.0, dtype=torch.float64)
        logits[:, 0], logits[:, 1] = law(len(images), random), 0.0
        return logits

    classifier = apac.Classifier(network, apac.Compose(), rule, device_batch=count, combine=combine)
    return classifier.decide(torch.zeros(count, 1, 1, 1))


def false_certifications(law, count: int, error: float) -> int:
    decision = decide_noise(law, count, apac.Certified(error=error, limit=1024))
    outcomes = zip(decision.stopped, decision.labels.tolist(), strict=True)
    return sum(reason == "certified" and label == 0 for reason, label in outcomes)


def most_errors(count: int, error: float) -> int:
    """Return how many of `count` images may be wrong at this error, with a probability of 0.9999."""
    return int(stats.binom.ppf(0.9999, count, error))


@pytest.mark.parametrize(
    ("law", "error"), [("gaussian", 0.05), ("gaussian", 0.001), ("skewed", 0.05), ("heavy-tailed", 0.05)]
)
def test_a_false_certification_is_as_rare_as_stated(law, error):
    assert false_certifications(LAWS[law], 2000, error) <= most_errors(2000, error)


def t_test_after_every_batch(bets: BettingState, values: Tensor, leaders: Tensor) -> BettingState:
    """Test all passes so far at a fixed level. The sums that this needs are stored in place of the wealth."""
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


def without_shares(bets: BettingState, values: Tensor, leaders: Tensor) -> BettingState:
    after = CORRECT(bets, values, leaders)
    return replace(after, alive=bets.alive & (after.log_wealth.logsumexp(2) < -math.log(bets.error)))


def leader_chosen_after_the_batch(bets: BettingState, values: Tensor, leaders: Tensor) -> BettingState:
    return CORRECT(replace(bets, leaders=leaders), values, leaders)


CORRECT = BettingState.update


@pytest.mark.parametrize("broken", [t_test_after_every_batch, without_shares, leader_chosen_after_the_batch])
def test_a_broken_rule_certifies_falsely_too_often(broken, monkeypatch):
    """The test above detects likely mistakes."""
    monkeypatch.setattr(BettingState, "update", broken)
    assert false_certifications(LAWS["gaussian"], 2000, 0.05) > most_errors(2000, 0.05)


@pytest.mark.parametrize("classes", [2, 10])
def test_a_false_certification_is_as_rare_with_more_classes_and_the_bound_is_tight(classes):
    """Either of two equal classes may be certified falsely: twice the probability, which is nearly reached."""
    count = 1500
    decision = decide_noise(LAWS["gaussian"], count, apac.Certified(error=0.05, limit=1024), seed=1, classes=classes)
    assert 0.2 * 0.05 * count <= decision.stopped.count("certified") <= most_errors(count, 2 * 0.05)


def test_a_clear_image_is_certified_soon_and_correctly():
    def law(n, g):
        return 12 + 4 * torch.randn(n, generator=g, dtype=torch.float64)

    decision = decide_noise(law, 500, apac.Certified(error=1e-4))
    assert set(decision.stopped) == {"certified"}
    assert (decision.labels == 0).all()
    assert decision.passes.double().median() == 32
    assert decision.passes.max() <= 64


def oracle(table: np.ndarray, plain: np.ndarray, rule: apac.Certified, clip: float) -> Outcome:
    """Decide one image with values (M, K): the wealth of each bet as a product, one pass after the other."""
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


def outcomes_of(decision: apac.Decision) -> list[Outcome]:
    tensors = decision.passes.tolist(), decision.labels.tolist(), decision.clipped.tolist()
    return [
        (passes, reason, label, clipped)
        for (passes, label, clipped), reason in zip(zip(*tensors, strict=True), decision.stopped, strict=True)
    ]


@pytest.mark.parametrize(
    ("rule", "u", "combine"),
    [
        (apac.Certified(0.01, limit=120), U, "product"),
        (apac.Certified(0.3, limit=40, clip=8.0), PER_CLASS, "product"),
        (apac.Certified(0.3, limit=40, clip=8.0), U, "sum"),
        (apac.Certified(0.01, limit=120), PER_CLASS, "sum"),
    ],
)
def test_decisions_agree_with_a_plain_reading_of_the_rule(network, images, rule, u, combine):
    classifier = apac.Classifier(network, u, rule, combine=combine, seed=4)
    decision, plain = classifier.decide(images), classifier.plain(images).numpy()
    table = np.stack([classifier.score(images, m, m + 1).mean(combine).numpy() for m in range(rule.limit)])
    clip = rule.clip if combine == "product" else 1.0
    expected = [oracle(table[:, i], plain[i], rule, clip) for i in range(len(images))]
    assert outcomes_of(decision) == expected
    assert "certified" in decision.stopped
    if combine == "product":
        assert "limit" in decision.stopped
        assert (decision.clipped.sum() > 0) == (rule.clip == 8.0)
    else:
        assert decision.clipped.sum() == 0


def test_product_and_sum_are_certified_by_the_values_that_rank_their_classes():
    """Class 0 is usually a little ahead and sometimes impossible: only the sum follows the majority."""

    def law(n, g):
        return torch.where(torch.rand(n, generator=g) < 0.8, 2.0, -27.0).double()

    for combine, label in (("product", 1), ("sum", 0)):
        decision = decide_noise(law, 50, apac.Certified(error=0.01), combine=combine)
        assert set(decision.stopped) == {"certified"}
        assert set(decision.labels.tolist()) == {label}


def test_eliminated_classes_and_clipped_passes_agree_with_a_plain_reading_of_the_rule(random):
    """Values that drift and jump: eliminated classes recover without effect, and exceed the clip when eliminated."""
    passes, count, classes = 320, 150, 4
    rule = apac.Certified(error=0.2, limit=passes, clip=6.0)
    drift = torch.randn(passes // 40, count, classes, generator=random, dtype=torch.float64).repeat_interleave(40, 0)
    values = 2 * drift + torch.randn(passes, count, classes, generator=random, dtype=torch.float64)
    values += 40 * (torch.rand(passes, count, classes, generator=random) < 0.01)
    plain = torch.randn(count, classes, generator=random, dtype=torch.float64)

    state = rule.init(count, lambda: plain, math.inf)
    outcomes: dict[int, Outcome] = {}
    for m in range(16, passes + 1, 16):
        leaders = values[:m].mean(0).argmax(1)
        state = state.update(values[m - 16 : m], leaders)
        for i in range(count):
            reason = "certified" if state.decided[i] else "limit" if state.undecidable[i] or m == passes else ""
            if reason and i not in outcomes:
                outcomes[i] = (m, reason, int(leaders[i]), int(state.clipped[i]))
    expected = [oracle(values[:, i].numpy(), plain[i].numpy(), rule, rule.clip) for i in range(count)]
    assert [outcomes[i] for i in range(count)] == expected
    early = [reason for m, reason, _, _ in expected if m < passes]
    assert {"certified", "limit"} == set(early)  # all classes of some images were eliminated
    assert sum(clipped > 0 for _, _, _, clipped in expected) > 15


def test_images_that_need_more_than_256_passes_agree_with_a_plain_reading_of_the_rule(random):
    """No image is decided early, some become undecidable, and the rest of several groups is merged."""
    passes, count, classes = 640, 90, 3
    rule = apac.Certified(error=0.3, limit=passes - 5, clip=6.0)
    drift = torch.randn(passes // 40, count, classes, generator=random, dtype=torch.float64).repeat_interleave(40, 0)
    values = 0.5 * drift + torch.randn(passes, count, classes, generator=random, dtype=torch.float64)
    table = values.log_softmax(2)
    calls = torch.zeros(count, dtype=torch.int64)

    def network(images: Tensor) -> Tensor:
        logits = []
        for i in images[:, 0, 0, 0].long().tolist():  # the plain pass first, then one pass after the other
            logits.append(values[max(0, int(calls[i]) - 1), i])
            calls[i] += 1
        return torch.stack(logits)

    decision = apac.Classifier(network, apac.Compose(), rule, device_batch=4).decide(numbered_images(count))
    expected = [oracle(table[:, i].numpy(), table[0, i].numpy(), rule, rule.clip) for i in range(count)]
    assert outcomes_of(decision) == expected
    assert any(m < rule.limit and reason == "limit" for m, reason, _, _ in expected)  # undecidable
    assert sum(256 < m < rule.limit for m, _, _, _ in expected) > 2


@pytest.mark.parametrize("lead", [4.0, 12.0, 29.0])
@pytest.mark.parametrize("error", [0.05, 1e-4])
def test_a_constant_lead_is_certified_when_the_closed_form_of_the_wealth_reaches_the_threshold(lead, error):
    def wealth(passes):
        return sum((1 / 2 if g == 0 else 1 / 18) * (1 + 0.95 / 30 * 2.0**-g * lead) ** passes for g in range(10))

    expected = next(n for n in range(16, 2000, 16) if wealth(n) >= 1 / error)
    network = network_from_table([[lead, 0.0]])
    decision = apac.Classifier(network, apac.Compose(), apac.Certified(error)).decide(numbered_images(1))
    assert decision.passes.tolist() == [expected]


def test_no_stake_can_lose_everything_and_the_shares_sum_to_one():
    assert STAKES.max() < 1
    assert SHARES.sum().item() == pytest.approx(1)
    assert len(STAKES) == len(SHARES)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: apac.Certified(error=0), "error of a Certified must be a number above 0 and below 1, got 0"),
        (lambda: apac.Certified(error=1), "above 0 and below 1, got 1"),
        (lambda: apac.Certified(error=-0.1), "above 0 and below 1"),
        (lambda: apac.Certified(error=math.nan), "above 0 and below 1"),
        (lambda: apac.Certified(error="small"), "above 0 and below 1, got 'small'"),  # type: ignore[arg-type]
        (lambda: apac.Certified(limit=15), "limit of a Certified must be .* of at least 16, got 15"),
        (lambda: apac.Certified(limit=100.0), "of at least 16, got 100.0"),  # type: ignore[arg-type]
        (lambda: apac.Certified(clip=0), "clip of a Certified must be a number above 0"),
        (lambda: apac.Certified(clip=math.inf), "clip of a Certified must be a number above 0"),
    ],
)
def test_a_wrong_argument_is_rejected_in_one_sentence(make, sentence):
    with pytest.raises(apac.InputError, match=sentence):
        make()


def test_no_tensor_of_the_bets_on_many_classes_is_larger_than_the_passes():
    largest = 0

    class Largest(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            returned = function(*args, **(kwargs or {}))
            largest = max(largest, returned.numel() if isinstance(returned, Tensor) else 0)
            return returned

    passes = torch.zeros(16, 16, 2000, dtype=torch.float64)
    state = apac.Certified().init(16, lambda: passes[0], math.inf)
    with Largest():
        state.update(passes, leaders=torch.zeros(16, dtype=torch.long))
    assert largest == passes.numel()
