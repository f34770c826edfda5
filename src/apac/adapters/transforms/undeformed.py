"""The deterministic part of a deformation, without its random part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apac.deform.base import Deformation, InputType
from apac.deform.parameters import prepare
from apac.validation import validate_strength


@dataclass(frozen=True)
class Undeformed(Deformation):
    """The preprocessing of a deformation alone: its images are those of the plain prediction."""

    _json_kind = "undeformed"

    deformation: Deformation

    def scaled(self, strength: float) -> Undeformed:
        validate_strength(strength)
        return self

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> Any:
        return self.deformation.sample(n, image_shape, generator=generator)

    def apply(self, images: Tensor, parameters: Any) -> Tensor:
        prepare(images, parameters)
        return self.deformation.preprocess(images)

    def preprocess(self, images: Tensor) -> Tensor:
        return self.deformation.preprocess(images)

    @property
    def thread_safe(self) -> bool:
        return self.deformation.thread_safe

    @property
    def expects_pixels(self) -> bool:
        return self.deformation.expects_pixels

    @property
    def input_types(self) -> tuple[InputType, ...]:
        return self.deformation.input_types
