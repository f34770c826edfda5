"""The rules: when an image has had enough passes."""

from __future__ import annotations

from dataclasses import dataclass

from apac.arguments import settle_integer


@dataclass(frozen=True)
class FixedPasses:
    """The paper's rule: the same number of passes M for every image."""

    passes: int

    def __post_init__(self) -> None:
        settle_integer(self, "passes", least=1)
