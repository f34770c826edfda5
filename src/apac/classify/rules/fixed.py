"""The paper's rule: the same number of passes for every image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from apac.validation import validate_integer


@dataclass(frozen=True)
class FixedPasses:
    """Stops every image after the same number of passes, the paper's M.

    >>> import apac
    >>> apac.FixedPasses(256)
    FixedPasses(passes=256)
    """

    passes: int
    when_decided: ClassVar[str] = "fixed"
    at_limit: ClassVar[str] = "fixed"

    def __post_init__(self) -> None:
        validate_integer(self, "passes", minimum=1)

    @property
    def limit(self) -> int:
        return self.passes

    def next_passes(self, passes_done: int, fill: int) -> int:
        return self.passes - passes_done

    def init(self, images: int, plain: Callable[[], Tensor], max_difference: float) -> FixedState:
        return FixedState(torch.zeros(images, dtype=torch.int64))


@dataclass(frozen=True, eq=False)
class FixedState:
    """Decides nothing before the last pass."""

    clipped: Tensor  # (n,) zeros

    @property
    def decided(self) -> Tensor:
        return torch.zeros_like(self.clipped, dtype=torch.bool)

    @property
    def undecidable(self) -> Tensor:
        return torch.zeros_like(self.clipped, dtype=torch.bool)

    def update(self, values: Tensor, leaders: Tensor) -> FixedState:
        return self
