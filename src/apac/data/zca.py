"""ZCA whitening: decorrelate the pixels of a data set with minimal change."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from apac.data.base import Unstandardized, check_pixels
from apac.errors import InputError
from apac.inference.workers import torch_threads

# With pixels in -128 .. 127, a float32 sum of 1,024 products is at most 2^24: every sum below is an exact integer in
# any order of summation, so the covariance is the same on every machine.
CHUNK, MIDDLE = 1024, 128
# Up to this number of images are whitened by products of the same shapes for each, which give it the same bits whatever
# the number; some rows of the matrix at a time, which stay in the cache for the next image.
FEW, ROWS_IN_CACHE = 16, 256


@dataclass(frozen=True, eq=False)
class Whitening(Unstandardized):
    """(pixels / 255 − mean) · matrix."""

    mean: Tensor  # (D,) float32, D = C · H · W
    matrix: Tensor  # (D, D) float32, symmetric, rounded to half precision

    kind: ClassVar[str] = "zca"

    def __post_init__(self) -> None:
        size = self.mean.numel()
        if self.mean.shape != (size,) or self.matrix.shape != (size, size):
            raise InputError(
                f"a whitening has a mean (D,) and a matrix (D, D), "
                f"got {tuple(self.mean.shape)} and {tuple(self.matrix.shape)}; fit it again."
            )

    def apply(self, images: Tensor) -> Tensor:
        """Convert (N, C, H, W) uint8 to (N, C, H, W) float32, in chunks to bound the memory.

        The result for an image does not depend on the others if there are at most `FEW`.
        """
        check_pixels(images)
        if images[:1].numel() not in (0, self.mean.numel()):
            raise InputError(
                f"this whitening was fitted on images of {self.mean.numel()} values, got images of "
                f"{' × '.join(map(str, images.shape[1:]))}; give images of the same data set."
            )
        whitened = torch.empty(images.shape, dtype=torch.float32)
        for start in range(0, len(images), CHUNK):
            chunk = images[start : start + CHUNK].flatten(1).float().div_(255).sub_(self.mean)  # (B, D)
            result = whitened[start : start + CHUNK].view(chunk.shape)
            if len(images) > FEW:
                torch.mm(chunk, self.matrix, out=result)
            else:
                self._apply_to_each(chunk, result)
        return whitened

    def _apply_to_each(self, rows: Tensor, result: Tensor) -> None:
        for start in range(0, len(self.matrix), ROWS_IN_CACHE):
            part = slice(start, start + ROWS_IN_CACHE)
            for row, whitened in zip(rows, result, strict=True):
                torch.mv(self.matrix[part], row, out=whitened[part])

    def in_front_of_pixels(self, network: nn.Module) -> nn.Module:
        """Return the network of pixels / 255: it whitens them itself."""
        return nn.Sequential(Whiten(self.mean, self.matrix), network)

    def tensors(self) -> dict[str, Tensor]:
        """Return the mean and the lower triangle in half precision, which is lossless: 9 MB for CIFAR-10, not 37."""
        row, column = _triangle(len(self.mean))
        return {"mean": self.mean, "triangle": self.matrix[row, column].half()}

    @staticmethod
    def from_tensors(mean: Tensor, triangle: Tensor) -> Whitening:
        size = mean.numel()
        count = size * (size + 1) // 2
        if mean.ndim != 1 or triangle.shape != (count,):
            raise InputError(
                f"a whitening of D values has a mean (D,) and a triangle of D · (D + 1) / 2 numbers, got the shapes "
                f"{tuple(mean.shape)} and {tuple(triangle.shape)}."
            )
        row, column = _triangle(size)
        matrix = torch.empty(size, size)
        matrix[row, column] = matrix[column, row] = triangle.float()
        return Whitening(mean, matrix)


class Whiten(nn.Module):
    """`Whitening.apply` for images of pixels / 255, as the first layer of a network."""

    mean: Tensor
    matrix: Tensor

    def __init__(self, mean: Tensor, matrix: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("matrix", matrix)

    def forward(self, images: Tensor) -> Tensor:
        return ((images.flatten(1) - self.mean) @ self.matrix).view_as(images)


def fit(images: Tensor, *, epsilon: float = 0.1, scale: float = 0.25) -> Whitening:
    """Fit on (N, C, H, W) uint8: x = pixels / 255 / scale has the covariance U Λ Uᵀ, and W = U (Λ + epsilon)^(−1/2) Uᵀ.

    The covariance divides by N. `epsilon` limits the amplification of noise in directions of little variance; it has
    the units of x, so it depends on `scale`. W is rounded to half precision, so that the stored whitening is the one
    used in training; this changes whitened pixels by about 0.1 % of their standard deviation.
    """
    check_pixels(images)
    if len(images) == 0:
        raise InputError("fitting a whitening needs at least one image, got none.")
    for name, value in {"epsilon": epsilon, "scale": scale}.items():
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} must be a positive number, got {value}.")

    mean, covariance = _moments(images)
    unit = 255 * scale
    variances, directions = _eigh(covariance / unit**2)  # (D,), (D, D)
    gains = (variances.clamp_min(0) + epsilon).rsqrt()
    matrix = (directions * gains) @ directions.T
    matrix = (matrix + matrix.T) / (2 * scale)
    if not matrix.half().isfinite().all():
        raise InputError(
            f"a whitening with epsilon={epsilon:g} and scale={scale:g} is too strong; give a larger epsilon."
        )
    return Whitening((mean / 255).float(), matrix.half().float())


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the covariance of the pixels, float64."""
    count, size = len(images), images[0].numel()
    total = torch.zeros(size, dtype=torch.float64)
    products = torch.zeros(size, size, dtype=torch.float64)
    for start in range(0, count, CHUNK):
        chunk = images[start : start + CHUNK].flatten(1).float().sub_(MIDDLE)  # (B, D)
        total += chunk.sum(0)
        products += chunk.T @ chunk
    mean = total / count
    return mean + MIDDLE, products / count - torch.outer(mean, mean)


def _triangle(size: int) -> tuple[Tensor, Tensor]:
    """Return the row and column indices of the lower triangle."""
    row, column = torch.tril_indices(size, size)
    return row, column


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    # On one thread: the decomposition synchronizes its threads thousands of times, which on a busy machine takes ten
    # times as long as the computation.
    with torch_threads(1):
        variances, directions = torch.linalg.eigh(matrix)
    return variances, directions
