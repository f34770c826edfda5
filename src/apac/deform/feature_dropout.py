"""Feature dropout: some numbers of a vector are lost."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from apac.deform.base import Deformation, prepare, same_shape
from apac.validation import validate_number


@dataclass(frozen=True, eq=False)
class FeatureDropoutParameters:
    lost: Tensor  # (n, C, H, W) bool


@dataclass(frozen=True)
class FeatureDropout(Deformation):
    """Each number becomes `value` with probability p, independently; 0 is the mean of a standardized feature."""

    p: float = 0.1
    value: float = 0.0

    def __post_init__(self) -> None:
        validate_number(self, "p", minimum=0, maximum=1)
        validate_number(self, "value")

    def sample(
        self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator
    ) -> FeatureDropoutParameters:
        return FeatureDropoutParameters(
            torch.rand(n, *image_shape, generator=generator, device=generator.device) < self.p
        )

    def apply(self, images: Tensor, parameters: FeatureDropoutParameters) -> Tensor:
        parameters = prepare(images, parameters)
        same_shape(images, parameters.lost)
        return torch.where(parameters.lost, self.value, images)
