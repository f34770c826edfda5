"""Gamma correction and color cast, the color processing that the paper names."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from apac.deform.base import Deformation, prepare
from apac.errors import InputError
from apac.validation import validate_number, validate_range


@dataclass(frozen=True, eq=False)
class ColorParameters:
    gamma: Tensor  # (n,)
    cast: Tensor  # (n, C)


@dataclass(frozen=True)
class Color(Deformation):
    """pixel → pixel^γ + cast of its channel, for pixels in [0, 1].

    ln γ is uniform between the logarithms of the range, so that darker and lighter are alike; the cast of each channel
    is N(0, cast²). The result is cut to [0, 1]. The paper names both and gives no number: the defaults are mild.
    """

    gamma: tuple[float, float] = (2 / 3, 3 / 2)
    cast: float = 0.05

    def __post_init__(self) -> None:
        validate_range(self, "gamma", minimum=1e-3)
        validate_number(self, "cast", minimum=0)

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> ColorParameters:
        low, high = math.log(self.gamma[0]), math.log(self.gamma[1])
        theta = torch.rand(n, generator=generator, device=generator.device)
        noise = torch.randn(n, image_shape[0], generator=generator, device=generator.device)
        return ColorParameters(torch.exp(low + (high - low) * theta), self.cast * noise)

    def apply(self, images: Tensor, parameters: ColorParameters) -> Tensor:
        parameters = prepare(images, parameters)
        if parameters.cast.shape[1] != images.shape[1]:
            raise InputError(
                f"these color parameters were drawn for {parameters.cast.shape[1]} channels; "
                f"draw them for {images.shape[1]}."
            )
        gamma = parameters.gamma.to(images.dtype)[:, None, None, None]
        cast = parameters.cast.to(images.dtype)[:, :, None, None]
        return (images.clamp(0, 1) ** gamma + cast).clamp(0, 1)
