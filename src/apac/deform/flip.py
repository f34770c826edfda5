"""Horizontal flip (paper, Deformation on CIFAR-10)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from apac.deform.base import Deformation
from apac.deform.cpu import as_arrays, as_tensor
from apac.deform.warp import Flow, warp
from apac.validation import validate_number


@dataclass(frozen=True, eq=False)
class FlipParameters:
    flipped: Tensor  # (n,) bool


@dataclass(frozen=True)
class Flip(Deformation):
    """Flip images horizontally with a given probability.

    The strength multiplies the probability, up to one half: beyond it, one of the two sides would be favored again. A
    probability above one half stays as it is.

    >>> import torch, apac
    >>> apac.Flip(1.0)(torch.tensor([[[1.0, 2.0, 3.0]]]), generator=torch.Generator().manual_seed(0))
    tensor([[[3., 2., 1.]]])
    """

    input_types = ("images",)

    probability: float = 0.5

    def __post_init__(self) -> None:
        validate_number(self, "probability", minimum=0, maximum=1)

    def _scaled(self, strength: float) -> Flip:
        return replace(self, probability=min(strength * self.probability, max(self.probability, 0.5)))

    @property
    def padding(self) -> None:
        """None: a flip shows no point outside the image."""
        return None

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> FlipParameters:
        return FlipParameters(
            torch.rand(n, generator=generator, device=generator.device, dtype=torch.float32) < self.probability
        )

    def values(self, image_shape: tuple[int, int, int]) -> FlipParameters | None:
        sides = {0.0: [False], 0.5: [False, True], 1.0: [True]}.get(self.probability)
        return None if sides is None else FlipParameters(torch.tensor(sides))

    def apply(self, images: Tensor, parameters: FlipParameters) -> Tensor:
        return warp(images, [self], [parameters])

    def flow(self, parameters: FlipParameters, image_size: tuple[int, int]) -> Flow:
        matrices, flipped = as_arrays(_matrices(parameters.flipped.device), parameters.flipped)
        return Flow(matrix=as_tensor(matrices[flipped + 0]))  # as integers, 0 or 1


@lru_cache(maxsize=8)
def _matrices(device: torch.device) -> Tensor:
    """Return the matrices of an image that is not flipped and of one that is, (2, 3, 3), cached to keep `flow` fast."""
    return torch.stack([torch.eye(3), torch.diag(torch.tensor([-1.0, 1.0, 1.0]))]).to(device)
