"""The certified rule: stop as soon as more passes would not change the decision, up to a stated probability.

For each class b, a gambler bets on every pass that the leading class a has the larger expectation. The gambler stakes a
share λ of the current wealth on d = z_a - z_b, which multiplies the wealth by 1 + λd. If b has the largest expectation
of all classes, then E[d] <= 0 for every leader that was chosen before the pass was seen, so the expected wealth never
grows. By Ville's inequality the probability that the wealth ever reaches 1/error times the initial wealth is at most
`error`, however often it is checked. When it does reach that, b is eliminated. docs/certified.md explains this without
sequential statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from apac.classify.rules.base import PASSES_PER_UPDATE
from apac.classify.scores import rank
from apac.validation import validate_integer, validate_positive, validate_probability

# Stakes as fractions of the largest safe one, 1 / clip. The best stake is unknown, so the initial wealth is divided
# among ten of them, half of it on the boldest, which decides the clear images.
STAKES = 0.95 * 2.0 ** -torch.arange(10, dtype=torch.float64)  # (G,)
SHARES = torch.tensor([1 / 2] + 9 * [1 / 18], dtype=torch.float64)  # (G,), they sum to 1
IN_CACHE = 10_240  # differences whose gains by all stakes are computed at once: 64 images with ten classes
MAX_GAIN = 1e15  # in units of clip: winning less than the bet earned is safe, and a batch of such gains stays finite


@dataclass(frozen=True)
class Certified:
    """Stops an image when its decision is settled, or after `limit` passes.

    Settled means: the probability that the decision differs from that of infinitely many passes is at most `error`. It
    does not mean that the decision is right: what the network says on average may be wrong.

    The bound holds for a network whose leading class never falls behind another class by more than `clip` in one pass,
    whatever the deformation. `Decision.clipped` counts the passes where it did: a count above 0 shows that the
    condition is violated, a count of 0 does not prove that it holds. Do not choose `clip` by looking at the images to
    decide. For `combine="sum"`, probabilities never differ by more than 1, which replaces `clip`: that bound is
    unconditional.

    >>> import apac, torch
    >>> rule = apac.Certified(error=1e-4, limit=128)
    >>> classifier = apac.Classifier(lambda images: images.flatten(1), apac.Flip(), rule)
    >>> clear, unclear = [[[0.0, 20.0, 0.0]]], [[[20.0, 0.0, 20.0]]]
    >>> classifier.decide(torch.tensor([clear, unclear])).stopped
    ('certified', 'limit')
    """

    error: float = 1e-4
    limit: int = 16_384
    clip: float = 30.0
    when_decided: ClassVar[str] = "certified"
    at_limit: ClassVar[str] = "limit"

    def __post_init__(self) -> None:
        validate_probability(self, "error")
        validate_integer(self, "limit", minimum=PASSES_PER_UPDATE)
        validate_positive(self, "clip")

    def next_passes(self, passes_done: int, fill: int) -> int:
        # At most as many as were done: the first batch of them may decide the image, and the rest is then wasted.
        passes = max(PASSES_PER_UPDATE, min(passes_done, fill) // PASSES_PER_UPDATE * PASSES_PER_UPDATE)
        return min(passes, self.limit - passes_done)

    def init(self, images: int, plain: Callable[[], Tensor], max_difference: float) -> BettingState:
        scores = plain()
        return BettingState(
            error=self.error,
            clip=max_difference if math.isfinite(max_difference) else self.clip,
            leaders=rank(scores)[:, 0],
            alive=torch.ones_like(scores, dtype=torch.bool),
            log_wealth=torch.zeros(*scores.shape, len(STAKES), dtype=torch.float64),
            clipped=torch.zeros(images, dtype=torch.int64),
        )


@dataclass(frozen=True, eq=False)
class BettingState:
    """The bets against each class of n images."""

    error: float
    clip: float
    leaders: Tensor  # (n,) chosen before the next passes are seen
    alive: Tensor  # (n, K) bool, classes that may still be the best
    log_wealth: Tensor  # (n, K, G), per stake
    clipped: Tensor  # (n,)

    @property
    def decided(self) -> Tensor:
        # One class is left and it leads: it is then also the best by the mean of the passes.
        return (self.alive.sum(dim=1) == 1) & self.alive.gather(1, self.leaders[:, None])[:, 0]

    @property
    def undecidable(self) -> Tensor:
        return ~self.alive.any(dim=1)

    def update(self, values: Tensor, leaders: Tensor) -> BettingState:
        leading = values.gather(2, self.leaders[None, :, None].expand(len(values), -1, 1))
        difference = leading - values  # (passes, n, K)
        exceeds = (difference < -self.clip) & self.alive
        difference = difference.clamp(-self.clip, MAX_GAIN * self.clip)
        stakes = STAKES / self.clip
        at_once = max(1, IN_CACHE // (len(values) * values.shape[2]))  # images
        gains = [(1 + stakes * part[..., None]).prod(dim=0).log() for part in difference.split(at_once, dim=1)]
        log_wealth = self.log_wealth + torch.cat(gains)
        total = (SHARES.log() + log_wealth).logsumexp(dim=2)  # (n, K)
        return replace(
            self,
            leaders=leaders,
            alive=self.alive & (total < -math.log(self.error)),
            log_wealth=log_wealth,
            clipped=self.clipped + exceeds.any(dim=2).sum(dim=0),
        )
