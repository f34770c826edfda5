"""Amplitude: a series grows or shrinks, each channel by a factor of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from apac.deform.base import Deformation, prepare, same_shape
from apac.validation import validate_number


@dataclass(frozen=True, eq=False)
class AmplitudeParameters:
    factor: Tensor  # (n, C, 1, 1)


@dataclass(frozen=True)
class Amplitude(Deformation):
    """Multiplies each channel by exp(N(0, std²)): as often up as down."""

    std: float = 0.1

    def __post_init__(self) -> None:
        validate_number(self, "std", minimum=0, maximum=10)

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> AmplitudeParameters:
        noise = torch.randn(n, image_shape[0], 1, 1, generator=generator, device=generator.device)
        return AmplitudeParameters(torch.exp(self.std * noise))

    def apply(self, images: Tensor, parameters: AmplitudeParameters) -> Tensor:
        parameters = prepare(images, parameters)
        same_shape(images[..., :1, :1], parameters.factor)
        return images * parameters.factor.to(images.dtype)
