"""Random homography (paper, Deformation on MNIST, 1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from apac import limits
from apac.deform.base import Deformation
from apac.deform.warp import Flow, Padding, warp
from apac.validation import validate_number, validate_padding


@dataclass(frozen=True, eq=False)
class HomographyParameters:
    matrix: Tensor  # (n, 3, 3), output → input, on coordinates in [-1, 1] over the image, H33 = 1


@dataclass(frozen=True)
class Homography(Deformation):
    """A projective map H whose eight free elements are Gaussian around the identity.

    H11, H22 ~ N(1, std²); H12, H21, which rotate and shear, ~ N(0, shear²); the other four ~ N(0, std²).
    Coordinates span [-1, 1] over the image, pixel edges included, with the origin at its center; H maps the output to
    the input. `padding` is the value shown outside the image, or "edge" to repeat the edge pixels. The strength
    multiplies `std` and `shear`.

    >>> import torch, apac
    >>> u = apac.Homography(std=0.1)
    >>> u(torch.rand(8, 1, 28, 28), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([8, 1, 28, 28])
    """

    input_types = ("images",)

    std: float = 0.1
    padding: Padding = 0.0
    shear: float | None = None  # None: the same as std

    def __post_init__(self) -> None:
        validate_number(self, "std", minimum=0, maximum=limits.FACTOR)
        validate_padding(self)
        if self.shear is not None:
            validate_number(self, "shear", minimum=0, maximum=limits.FACTOR)

    def __repr__(self) -> str:
        shear = "" if self.shear is None else f", shear={self.shear!r}"
        return f"Homography(std={self.std!r}, padding={self.padding!r}{shear})"

    def _scaled(self, strength: float) -> Homography:
        shear = None if self.shear is None else strength * self.shear
        return replace(self, std=strength * self.std, shear=shear)

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> HomographyParameters:
        noise = torch.randn(n, 9, generator=generator, device=generator.device, dtype=torch.float32)
        shear = self.std if self.shear is None else self.shear
        mean, std = _mean_and_std(self.std, shear, generator.device)
        return HomographyParameters(mean + (std * noise).view(n, 3, 3))

    def apply(self, images: Tensor, parameters: HomographyParameters) -> Tensor:
        return warp(images, [self], [parameters])

    def flow(self, parameters: HomographyParameters, image_size: tuple[int, int]) -> Flow:
        # from [-1, 1] to pixels: D⁻¹ H D with D = diag(2/W, 2/H, 1)
        row, column = _to_unit(image_size, parameters.matrix.dtype, parameters.matrix.device)
        return Flow(matrix=parameters.matrix * row / column)


@lru_cache(maxsize=32)
def _to_unit(image_size: tuple[int, int], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the diagonal of D as a row (3,) and as a column (3, 1), cached to keep `flow` fast."""
    height, width = image_size
    diagonal = torch.tensor([2 / width, 2 / height, 1.0], dtype=dtype, device=device)
    return diagonal, diagonal[:, None]


@lru_cache(maxsize=8)
def _mean_and_std(std: float, shear: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the mean (3, 3) and standard deviation (9,) of the elements, cached to keep `sample` fast."""
    elements = [[std, shear, std], [shear, std, std], [std, std, 0.0]]  # H33 = 1
    return torch.eye(3, device=device), torch.tensor(elements, device=device).flatten()
