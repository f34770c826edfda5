"""Random homography (paper, Deformation on MNIST, 1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from apac.deform.base import Deformation
from apac.deform.cpu import as_arrays
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
    the input. `padding` is the value shown outside the image, or "edge" to repeat the edge pixels.

    >>> import torch, apac
    >>> u = apac.Homography(std=0.1)
    >>> u(torch.rand(8, 1, 28, 28), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([8, 1, 28, 28])
    """

    std: float = 0.1
    padding: Padding = 0.0
    shear: float | None = None  # None: the same as std

    def __post_init__(self) -> None:
        validate_number(self, "std", minimum=0)
        validate_padding(self)
        if self.shear is not None:
            validate_number(self, "shear", minimum=0)

    def __repr__(self) -> str:
        shear = "" if self.shear is None else f", shear={self.shear!r}"
        return f"Homography(std={self.std!r}, padding={self.padding!r}{shear})"

    @property
    def _shear(self) -> float:
        return self.std if self.shear is None else self.shear

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> HomographyParameters:
        matrix = torch.randn(n, 9, generator=generator, device=generator.device)
        elements, mean, std = as_arrays(matrix, *_mean_and_std(self.std, self._shear, generator.device))
        elements *= std
        elements += mean
        return HomographyParameters(matrix.view(n, 3, 3))

    def apply(self, images: Tensor, parameters: HomographyParameters) -> Tensor:
        return warp(images, [self], [parameters])

    def flow(self, parameters: HomographyParameters, image_size: tuple[int, int]) -> Flow:
        height, width = image_size
        # from [-1, 1] to pixels: D⁻¹ H D with D = diag(2/W, 2/H, 1)
        result = parameters.matrix.clone()
        (matrix,) = as_arrays(result)
        matrix[:, :, 0] *= 2 / width
        matrix[:, :, 1] *= 2 / height
        matrix[:, 0] /= 2 / width
        matrix[:, 1] /= 2 / height
        return Flow(matrix=result)


@lru_cache(maxsize=8)
def _mean_and_std(std: float, shear: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of the elements, (9,) each, cached to keep `sample` fast."""
    elements = [[std, shear, std], [shear, std, std], [std, std, 0.0]]  # H33 = 1
    return torch.eye(3, device=device).flatten(), torch.tensor(elements, device=device).flatten()
