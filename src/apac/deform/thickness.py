"""Line thickening and thinning (paper, Deformation on MNIST, 3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from apac.deform.base import Deformation, prepare
from apac.deform.cpu import by_tiles, kernels
from apac.errors import InputError
from apac.validation import validate_integer, validate_number


@dataclass(frozen=True, eq=False)
class ThicknessParameters:
    change: Tensor  # (n,) int8: 1 dilates, -1 erodes, 0 leaves as it is


@dataclass(frozen=True)
class Thickness(Deformation):
    """Gray dilation or erosion by a square of `size` pixels, with probabilities `dilate` and `erode`.

    The default element is 2 × 2: eroding by 3 × 3 leaves 18 % of the ink of MNIST's digits, and one digit in seven
    without a pixel above half brightness. The ink is what is lighter.
    """

    dilate: float = 0.25
    erode: float = 0.25
    size: int = 2

    def __post_init__(self) -> None:
        validate_number(self, "dilate", minimum=0, maximum=1)
        validate_number(self, "erode", minimum=0, maximum=1)
        validate_integer(self, "size", minimum=1)
        if self.dilate + self.erode > 1:
            raise InputError(
                f"the probabilities of a Thickness must be at most 1 together, got dilate={self.dilate} and "
                f"erode={self.erode}."
            )

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> ThicknessParameters:
        theta = torch.rand(n, generator=generator, device=generator.device)
        borders, changes = _changes(self.dilate, self.erode, generator.device)
        return ThicknessParameters(changes[torch.bucketize(theta, borders, right=True)])

    def apply(self, images: Tensor, parameters: ThicknessParameters) -> Tensor:
        return by_tiles(self._apply, images, prepare(images, parameters))

    def _apply(self, images: Tensor, parameters: ThicknessParameters) -> Tensor:
        if len(parameters.change) == 1 and int(parameters.change) == 0:
            return images
        fast = kernels(images, parameters)
        if fast is not None:
            return self._by_kernel(fast, images, parameters.change)
        if len(parameters.change) == 1:
            return self._morph(images, int(parameters.change))
        result = images.clone()
        for change in (1, -1):
            chosen = parameters.change == change
            if chosen.any():
                result[chosen] = self._morph(images[chosen], change)
        return result

    def _by_kernel(self, fast: Any, images: Tensor, change: Tensor) -> Tensor:
        # numba knows no half precision; single holds the same numbers
        pixels = images.detach().float() if images.dtype in (torch.float16, torch.bfloat16) else images.detach()
        out = torch.empty(images.shape, dtype=pixels.dtype, device="cpu")
        height, width = images.shape[2:]
        flat = pixels.flatten(2).contiguous().numpy(), change.contiguous().numpy()
        fast.thickness(*flat, self.size, height, width, out.flatten(2).numpy())
        return out.to(images.dtype)

    def _morph(self, images: Tensor, change: int) -> Tensor:
        """The extreme over a window. For an even size dilation looks right and down, erosion left and up, so that one
        after the other does not shift the image; scipy.ndimage does the same."""
        before = self.size // 2 if change < 0 else (self.size - 1) // 2
        for axis in (2, 3):
            images = _extreme(images, axis, -before, self.size, torch.maximum if change > 0 else torch.minimum)
        return images


def _extreme(images: Tensor, axis: int, first: int, size: int, pick: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """pick over the window [i + first, i + first + size) of an axis; what lies outside the image is not looked at."""
    length = images.shape[axis]
    places = torch.arange(length, device=images.device)
    result = images
    for offset in range(first, first + size):
        if offset:
            result = pick(result, images.index_select(axis, (places + offset).clamp(0, length - 1)))
    return result


@lru_cache(maxsize=8)
def _changes(dilate: float, erode: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where a number in [0, 1) falls, and what that means: dilation, erosion or nothing."""
    borders = torch.tensor([dilate, dilate + erode], device=device)
    return borders, torch.tensor([1, -1, 0], dtype=torch.int8, device=device)
