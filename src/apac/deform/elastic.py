"""Elastic distortion after Simard et al. (paper, Deformation on MNIST, 2, and on CIFAR-10, 3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from apac import limits
from apac.deform.base import Deformation, size_factor
from apac.deform.cpu import as_arrays, as_tensor
from apac.deform.noise import uniform_noise
from apac.deform.warp import Flow, Padding, warp
from apac.errors import InputError
from apac.validation import validate_image_shape, validate_number, validate_padding, validate_reference_size

# Multiplications of one product and of all: for fewer, torch wakes threads, which takes longer than the product, and
# numpy does not. Many products are faster in torch.
SMALL_PRODUCT, FEW_PRODUCTS = 1 << 17, 1 << 22
TRUNCATE = 4.0  # the Gaussian filter ends at this many standard deviations, as in scipy.ndimage


@dataclass(frozen=True, eq=False)
class ElasticParameters:
    noise: Tensor  # (n, 2, H, W), uniform in [-1, 1), x then y


@dataclass(frozen=True)
class Elastic(Deformation):
    """A smooth random displacement of every pixel.

    Per axis: uniform(-1, 1) noise in each pixel, filtered by a normalized Gaussian of `sigma` pixels (zero outside the
    image), times `alpha`, is the displacement in pixels. `padding` is the value shown outside the image, or "edge" to
    repeat the edge pixels. The strength multiplies `alpha`.

    `reference_size` is the shorter side in pixels of the images for which `sigma` and `alpha` are given. Images that
    are f times as large are displaced by the same fractions of their shorter side: with f · sigma and f² · alpha,
    because the displacement is proportional to alpha / sigma. None: `sigma` and `alpha` are pixels of any image.

    >>> import torch, apac
    >>> u = apac.Elastic(sigma=6.0, alpha=38.0)
    >>> u(torch.rand(8, 1, 28, 28), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([8, 1, 28, 28])
    """

    input_types = ("images",)

    sigma: float = 6.0
    alpha: float = 38.0
    padding: Padding = 0.0
    reference_size: int | None = None

    def __post_init__(self) -> None:
        validate_number(self, "sigma", minimum=limits.SIGMA[0], maximum=limits.SIGMA[1])
        validate_number(self, "alpha", minimum=-limits.PIXEL_DISTANCE, maximum=limits.PIXEL_DISTANCE)
        validate_padding(self)
        validate_reference_size(self)

    def _scaled(self, strength: float) -> Elastic:
        return replace(self, alpha=strength * self.alpha)

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> ElasticParameters:
        _, height, width = validate_image_shape(image_shape, max_side=limits.IMAGE_SIDE)
        self._sigma((height, width))
        return ElasticParameters(uniform_noise(n, (2, height, width), generator=generator))

    def apply(self, images: Tensor, parameters: ElasticParameters) -> Tensor:
        return warp(images, [self], [parameters])

    def flow(self, parameters: ElasticParameters, image_size: tuple[int, int]) -> Flow:
        height, width = image_size
        noise = parameters.noise
        if noise.shape[-2:] != (height, width):
            raise InputError(
                f"these elastic parameters were sampled for images of {noise.shape[-2]} × {noise.shape[-1]} pixels; "
                f"sample them for {height} × {width}."
            )
        alpha = self.alpha * size_factor(self.reference_size, image_size) ** 2
        rows, columns = _filters(image_size, self._sigma(image_size), alpha, noise.dtype, noise.device)
        product = height * width * max(height, width)
        if product <= SMALL_PRODUCT and 4 * len(noise) * product <= FEW_PRODUCTS:
            rows, noise, columns = as_arrays(rows, noise, columns)
        return Flow(displacement=as_tensor(rows @ (noise @ columns)))

    def _sigma(self, image_size: tuple[int, int]) -> float:
        """Return sigma in pixels of an image (H, W)."""
        sigma = self.sigma * size_factor(self.reference_size, image_size)
        if sigma > limits.SIGMA[1]:
            raise InputError(
                f"{self} has a sigma of {sigma:,.0f} pixels for images of {' × '.join(map(str, image_size))}; choose a "
                f"sigma and a reference_size that give at most {limits.SIGMA[1]:,.0f}."
            )
        return max(sigma, limits.SIGMA[0])


@lru_cache(maxsize=16)
def _filters(
    image_size: tuple[int, int], sigma: float, alpha: float, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the filters of the rows, times alpha, and of the columns as matrices, cached to keep `flow` fast."""
    height, width = image_size
    rows, columns = alpha * gaussian_matrix(height, sigma), gaussian_matrix(width, sigma)
    return rows.float().to(device, dtype), columns.float().to(device, dtype)


def gaussian_matrix(length: int, sigma: float) -> Tensor:
    """Return the Gaussian filter along one axis as a symmetric (length, length) matrix.

    On small images a matrix product is faster than a convolution.
    """
    radius = int(TRUNCATE * sigma + 0.5)
    taps = torch.exp(-0.5 * (torch.arange(-radius, radius + 1, dtype=torch.float64) / sigma) ** 2)
    distance = (torch.arange(length)[:, None] - torch.arange(length)).abs()
    matrix = torch.exp(-0.5 * (distance.double() / sigma) ** 2) / taps.sum()
    return torch.where(distance <= radius, matrix, 0.0)
