"""The interface of a rule: how many passes to schedule next, and which images are decided."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

PASSES_PER_UPDATE = 16


class RuleState(Protocol):
    """What a rule has learned about n undecided images.

    A state is a frozen dataclass of tensors with a leading dimension n, and of numbers that all n images share. The
    scheduler selects rows of it and concatenates states.
    """

    @property
    def decided(self) -> Tensor:
        """(n,) bool, images whose leading class is settled."""

    @property
    def undecidable(self) -> Tensor:
        """(n,) bool, images that more passes cannot decide."""

    @property
    def clipped(self) -> Tensor:
        """(n,) int64, passes in which evidence was clipped."""

    def update(self, values: Tensor, leaders: Tensor) -> RuleState:
        """Return the state after a batch of passes.

        `values` (passes, n, K) rank the classes in each pass of the batch; `leaders` (n,) are the best classes by the
        mean of all passes so far, this batch included.
        """


@runtime_checkable
class Rule(Protocol):
    """When to stop. `FixedPasses` and `Certified` are rules; any object with these members is one.

    >>> import apac
    >>> isinstance(apac.FixedPasses(256), apac.Rule)
    True
    """

    when_decided: ClassVar[str]  # `Decision.stopped` of an image that the rule decides
    at_limit: ClassVar[str]  # `Decision.stopped` of an image that is undecided after `limit` passes

    @property
    def limit(self) -> int:
        """The largest number of passes of an image."""

    def next_passes(self, passes_done: int, fill: int) -> int:
        """Return the number of passes to schedule next for images after `passes_done` passes.

        `fill` passes of each image would keep all cores busy. The number is at least 1, and a multiple of
        `PASSES_PER_UPDATE` unless it reaches `limit`: otherwise the updates of the state, and so the decision, would
        depend on the other images.
        """

    def init(self, images: int, plain: Callable[[], Tensor], max_difference: float) -> RuleState:
        """Return the state of n images before their first pass.

        `plain()` evaluates the network for their plain log-probabilities, (n, K); call it only if needed. Two classes
        never differ by more than `max_difference` in one pass, which may be infinite.
        """
