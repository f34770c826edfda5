"""When an image has had enough passes: what a rule is, and the paper's. `sequential.py` has the certified one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from apac.validation import validate_integer

Combine = Literal["product", "sum"]

BATCH = 16  # passes between two looks at an image


class RuleState(Protocol):
    """What a rule knows of n images that are not decided yet, as `deform.parameters` takes it."""

    @property
    def decided(self) -> Tensor: ...  # (n,) decided: the class that leads is the one

    @property
    def undecidable(self) -> Tensor: ...  # (n,) not to be decided by more passes

    @property
    def clipped(self) -> Tensor: ...  # (n,) passes in which evidence was cut off

    def update(self, values: Tensor, leaders: Tensor) -> RuleState:
        """What is known after a batch of passes: `values` (passes, n, K) are what ranks the classes in each, `leaders`
        (n,) the best classes by the mean of all passes up to now."""


@runtime_checkable
class Rule(Protocol):
    """When to stop."""

    at_limit: ClassVar[str]  # why an image stopped that has had all its passes

    @property
    def limit(self) -> int: ...  # passes that an image has at most

    def next_passes(self, had: int, fill: int) -> int:
        """Passes to give next to images that have had so many, where `fill` each would keep the machine busy."""

    def init(self, images: int, plain: Callable[[], Tensor], combine: Combine) -> RuleState:
        """RuleState n images; `plain()` gives their plain log-probabilities, (n, K)."""


@dataclass(frozen=True)
class FixedPasses:
    """The paper's rule: the same number of passes M for every image."""

    passes: int
    at_limit: ClassVar[str] = "fixed"

    def __post_init__(self) -> None:
        validate_integer(self, "passes", minimum=1)

    @property
    def limit(self) -> int:
        return self.passes

    def next_passes(self, had: int, fill: int) -> int:
        return self.passes - had

    def init(self, images: int, plain: Callable[[], Tensor], combine: Combine) -> FixedState:
        return FixedState(torch.zeros(images, dtype=torch.int64))


@dataclass(frozen=True, eq=False)
class FixedState:
    """Waits for the last pass, whatever the passes say."""

    clipped: Tensor  # (n,) zeros

    @property
    def decided(self) -> Tensor:
        return self.clipped.bool()

    @property
    def undecidable(self) -> Tensor:
        return self.clipped.bool()

    def update(self, values: Tensor, leaders: Tensor) -> FixedState:
        return self
