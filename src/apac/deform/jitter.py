"""Additive Gaussian noise, for vectors, time series or images."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from apac import limits
from apac.deform.base import Deformation
from apac.deform.parameters import check_same_shape, prepare
from apac.validation import validate_image_shape, validate_number


@dataclass(frozen=True, eq=False)
class JitterParameters:
    noise: Tensor  # (n, C, H, W)


@dataclass(frozen=True)
class Jitter(Deformation):
    """Add independent Gaussian noise N(0, std²) to every element. The strength multiplies `std`.

    >>> import torch, apac
    >>> apac.Jitter(0.1)(torch.zeros(8, 1, 1, 4), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([8, 1, 1, 4])
    """

    std: float = 0.1

    def __post_init__(self) -> None:
        validate_number(self, "std", minimum=0, maximum=limits.ABS_VALUE)

    def _scaled(self, strength: float) -> Jitter:
        return replace(self, std=strength * self.std)

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> JitterParameters:
        validate_image_shape(image_shape)
        return JitterParameters(
            self.std * torch.randn(n, *image_shape, generator=generator, device=generator.device, dtype=torch.float32)
        )

    def apply(self, images: Tensor, parameters: JitterParameters) -> Tensor:
        parameters = prepare(images, parameters)
        check_same_shape(images, parameters.noise)
        return images + parameters.noise.to(images.dtype)
