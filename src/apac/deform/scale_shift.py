"""Random magnification and cropping (paper, Deformation on CIFAR-10, 1 and 2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from apac.deform.base import Deformation
from apac.deform.warp import Flow, Padding, warp
from apac.validation import validate_padding, validate_range


@dataclass(frozen=True, eq=False)
class ScaleShiftParameters:
    scale: Tensor  # (n,), the magnification s
    corner: Tensor  # (n, 2), left and top edge of the patch, in pixels from those of the image


@dataclass(frozen=True)
class ScaleShift(Deformation):
    """Magnify a random patch, 1/s as wide and high as the image, to the size of the image.

    s ~ U(scale); the left edge of the patch ~ U(0, W (1 − 1/s)), the top edge ~ U(0, H (1 − 1/s)), independently.
    `padding` is the value shown outside the image, or "edge" to repeat the edge pixels.

    >>> import torch, apac
    >>> u = apac.ScaleShift(scale=(1.0, 2.0))
    >>> u(torch.rand(8, 3, 32, 32), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([8, 3, 32, 32])
    """

    scale: tuple[float, float] = (1.0, 2.0)
    padding: Padding = "edge"

    def __post_init__(self) -> None:
        validate_range(self, "scale", minimum=1)
        validate_padding(self)

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> ScaleShiftParameters:
        low, high = self.scale
        uniform = torch.rand(n, 3, generator=generator, device=generator.device)
        scale = uniform[:, 0] * (high - low) + low
        slack = _side_lengths(image_shape[1:], uniform.dtype, uniform.device) * (1 - scale.reciprocal())[:, None]  # (n, 2)
        return ScaleShiftParameters(scale, uniform[:, 1:] * slack)

    def apply(self, images: Tensor, parameters: ScaleShiftParameters) -> Tensor:
        return warp(images, [self], [parameters])

    def flow(self, parameters: ScaleShiftParameters, image_size: tuple[int, int]) -> Flow:
        step = parameters.scale.reciprocal()[:, None]
        half = _side_lengths(image_size, step.dtype, step.device) / 2
        shift = parameters.corner + half * (step - 1)  # (n, 2): the patch's center from the image's
        constants, elements = _constants(step.dtype, step.device)
        terms = torch.cat((step, shift, constants.expand(len(step), 2)), dim=1)  # (n, 5): step, shift, 0, 1
        return Flow(matrix=terms[:, elements].view(-1, 3, 3))


@lru_cache(maxsize=32)
def _side_lengths(image_size: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the width and height, cached to keep `sample` and `flow` fast."""
    height, width = image_size
    return torch.tensor([width, height], dtype=dtype, device=device)


@lru_cache(maxsize=8)
def _constants(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return 0 and 1, and the index of each element of the matrix among step, shift (x and y), 0 and 1."""
    return torch.tensor([0, 1], dtype=dtype, device=device), torch.tensor([0, 3, 1, 3, 0, 2, 3, 3, 4], device=device)
