"""Gaussian jitter: noise on every number, of vectors, series or images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from apac.deform.base import Deformation, prepare, same_shape
from apac.validation import validate_number


@dataclass(frozen=True, eq=False)
class JitterParameters:
    noise: Tensor  # (n, C, H, W)


@dataclass(frozen=True)
class Jitter(Deformation):
    """Adds N(0, std²) to every number, independently."""

    std: float = 0.1

    def __post_init__(self) -> None:
        validate_number(self, "std", minimum=0)

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> JitterParameters:
        return JitterParameters(self.std * torch.randn(n, *image_shape, generator=generator, device=generator.device))

    def apply(self, images: Tensor, parameters: JitterParameters) -> Tensor:
        parameters = prepare(images, parameters)
        same_shape(images, parameters.noise)
        return images + parameters.noise.to(images.dtype)
