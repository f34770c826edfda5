"""The rules: when an image has had enough passes."""

from __future__ import annotations

from dataclasses import dataclass

from apac.errors import InputError


@dataclass(frozen=True)
class FixedPasses:
    """The paper's rule: the same number of passes M for every image."""

    passes: int

    def __post_init__(self) -> None:
        if not isinstance(self.passes, int) or self.passes < 1:
            raise InputError(f"the number of passes M must be a whole number of at least 1, got {self.passes!r}.")
