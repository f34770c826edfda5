"""Horizontal flip (paper, Deformation on CIFAR-10)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from apac.deform.base import Deformation
from apac.deform.cpu import as_arrays
from apac.deform.warp import Flow, warp
from apac.validation import validate_number


@dataclass(frozen=True, eq=False)
class FlipParameters:
    flipped: Tensor  # (n,) bool


@dataclass(frozen=True)
class Flip(Deformation):
    """Flip images horizontally with a given probability.

    >>> import torch, apac
    >>> apac.Flip(1.0)(torch.tensor([[[1.0, 2.0, 3.0]]]), generator=torch.Generator().manual_seed(0))
    tensor([[[3., 2., 1.]]])
    """

    probability: float = 0.5

    def __post_init__(self) -> None:
        validate_number(self, "probability", minimum=0, maximum=1)

    @property
    def padding(self) -> None:
        """None: a flip shows no point outside the image."""
        return None

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> FlipParameters:
        (uniform,) = as_arrays(torch.rand(n, generator=generator, device=generator.device))
        return FlipParameters(torch.as_tensor(uniform < self.probability))

    def apply(self, images: Tensor, parameters: FlipParameters) -> Tensor:
        return warp(images, [self], [parameters])

    def flow(self, parameters: FlipParameters, image_size: tuple[int, int]) -> Flow:
        result = torch.zeros(parameters.flipped.shape[0], 3, 3, device=parameters.flipped.device)
        flipped, matrix = as_arrays(parameters.flipped, result)
        matrix[:, 0, 0] = 1 - 2 * flipped
        matrix[:, 1, 1] = matrix[:, 2, 2] = 1
        return Flow(matrix=result)
