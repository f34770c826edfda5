"""The certified rule: stop as soon as the decision is certain, with a stated error.

For each class b, imagine a gambler who bets, pass after pass, that the leading class a has the larger expectation:
he stakes the share λ of what he has on d = z_a - z_b, and multiplies it by 1 + λd. If b is the class with the largest
expectation, every leader that was named before the passes were seen has E[d] <= 0, so his wealth is expected never to
grow, and by Ville's inequality the chance that it ever reaches 1/error times what he began with is at most `error`,
however often one looks. Where it does, b is out. docs/certified.md tells the same without sequential statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from apac.classify.decision import rank
from apac.classify.rules.base import BATCH, Combine
from apac.validation import validate_integer, validate_positive, validate_probability

# Stakes as shares of the largest possible, 1 / clip: nobody knows the best one, so the gambler divides what he has
# among ten, half of it on the boldest, which settles the clear images.
STAKES = 0.95 * 2.0 ** -torch.arange(10, dtype=torch.float64)  # (G,)
SHARES = torch.tensor([1 / 2] + 9 * [1 / 18], dtype=torch.float64)  # (G,), together 1
MOST = 1e15  # clips that a pass may win: to win less is safe, and a batch of such gains is still a number


@dataclass(frozen=True)
class Certified:
    """Stops an image when the probability that its decision differs from that of infinitely many passes is at most
    `error`, or after `limit` passes.

    The bound holds for a network whose leading class cannot fall behind another by more than `clip` in a pass, whatever
    the deformation. The decision counts the passes where it did: where there are some, the condition is broken; that
    there are none does not prove it. Do not choose `clip` by the images that are to be decided. Probabilities, for
    `combine="sum"`, never differ by more than 1, which then takes the place of `clip`: their bound has no condition.
    """

    error: float = 1e-4
    limit: int = 16_384
    clip: float = 30.0
    at_limit: ClassVar[str] = "limit"

    def __post_init__(self) -> None:
        validate_probability(self, "error")
        validate_integer(self, "limit", minimum=BATCH)
        validate_positive(self, "clip")

    def next_passes(self, had: int, fill: int) -> int:
        # No more than doubles what was spent: an image may be decided by the first of them.
        some = max(BATCH, min(had, fill) // BATCH * BATCH)
        return min(some, self.limit - had)

    def init(self, images: int, plain: Callable[[], Tensor], combine: Combine) -> BettingState:
        scores = plain()
        alive = torch.ones_like(scores, dtype=torch.bool)
        return BettingState(
            error=self.error,
            clip=self.clip if combine == "product" else 1.0,
            leaders=rank(scores)[:, 0],
            alive=alive,
            log_wealth=torch.zeros(*scores.shape, len(STAKES), dtype=torch.float64),
            clipped=torch.zeros(images, dtype=torch.int64),
        )


@dataclass(frozen=True, eq=False)
class BettingState:
    """The gamblers of n images: one for each class that may still be the best."""

    error: float
    clip: float
    leaders: Tensor  # (n,) named before the passes to come
    alive: Tensor  # (n, K)
    log_wealth: Tensor  # (n, K, G), of each stake apart
    clipped: Tensor  # (n,)

    @property
    def decided(self) -> Tensor:
        # One class left, and it leads: then it is also what the mean of the passes says.
        return (self.alive.sum(dim=1) == 1) & self.alive.gather(1, self.leaders[:, None])[:, 0]

    @property
    def undecidable(self) -> Tensor:
        return ~self.alive.any(dim=1)

    def update(self, values: Tensor, leaders: Tensor) -> BettingState:
        leading = values.gather(2, self.leaders[None, :, None].expand(len(values), -1, 1))
        difference = leading - values  # (passes, n, K)
        beyond = (difference < -self.clip) & self.alive
        difference = difference.clamp(-self.clip, MOST * self.clip)
        gains = [(1 + stake / self.clip * difference).prod(dim=0).log() for stake in STAKES]
        log_wealth = self.log_wealth + torch.stack(gains, dim=2)
        total = (SHARES.log() + log_wealth).logsumexp(dim=2)  # (n, K)
        return replace(
            self,
            leaders=leaders,
            alive=self.alive & (total < -math.log(self.error)),
            log_wealth=log_wealth,
            clipped=self.clipped + beyond.any(dim=2).sum(dim=0),
        )
