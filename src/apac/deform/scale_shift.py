"""Random magnification and cropping (paper, Deformation on CIFAR-10, 1 and 2)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from apac import limits
from apac.deform.base import Deformation
from apac.deform.cpu import kernels_for
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
    `padding` is the value shown outside the image, or "edge" to repeat the edge pixels. The strength multiplies s − 1,
    and the shifts shrink with it.

    >>> import torch, apac
    >>> u = apac.ScaleShift(scale=(1.0, 2.0))
    >>> u(torch.rand(8, 3, 32, 32), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([8, 3, 32, 32])
    """

    input_types = ("images",)

    scale: tuple[float, float] = (1.0, 2.0)
    padding: Padding = "edge"

    def __post_init__(self) -> None:
        validate_range(self, "scale", minimum=1, maximum=limits.FACTOR)
        validate_padding(self)

    def _scaled(self, strength: float) -> ScaleShift:
        low, high = (1 + strength * (scale - 1) for scale in self.scale)
        return replace(self, scale=(low, high))

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> ScaleShiftParameters:
        _, height, width = image_shape
        low, high = self.scale
        uniform = torch.rand(n, 3, generator=generator, device=generator.device, dtype=torch.float32)
        kernels = kernels_for(uniform)
        if kernels is not None:
            kernels.patches(uniform.numpy(), low, high, height, width)
            return ScaleShiftParameters(uniform[:, 0], uniform[:, 1:])
        scale = uniform[:, 0] * (high - low) + low
        slack = 1 - 1 / scale
        return ScaleShiftParameters(scale, uniform[:, 1:] * torch.stack((width * slack, height * slack), dim=1))

    def apply(self, images: Tensor, parameters: ScaleShiftParameters) -> Tensor:
        return warp(images, [self], [parameters])

    def flow(self, parameters: ScaleShiftParameters, image_size: tuple[int, int]) -> Flow:
        height, width = image_size
        scale, corner = parameters.scale, parameters.corner
        matrix = scale.new_zeros(scale.shape[0], 3, 3)
        kernels = kernels_for(scale, corner)
        if kernels is not None:
            kernels.patch_matrices(scale.numpy(), corner.numpy(), height, width, matrix.numpy())
            return Flow(matrix=matrix)
        step = 1 / scale
        matrix[:, 0, 0] = matrix[:, 1, 1] = step
        matrix[:, 0, 2] = corner[:, 0] + width / 2 * (step - 1)  # the patch's center from the image's
        matrix[:, 1, 2] = corner[:, 1] + height / 2 * (step - 1)
        matrix[:, 2, 2] = 1
        return Flow(matrix=matrix)
