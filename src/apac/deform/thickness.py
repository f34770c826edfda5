"""Line thickening and thinning (paper, Deformation on MNIST, 3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from apac import limits
from apac.deform.base import Deformation, size_factor
from apac.deform.cpu import apply_in_tiles, as_arrays, kernels_for
from apac.deform.parameters import prepare
from apac.errors import InputError
from apac.validation import validate_image_shape, validate_integer, validate_number, validate_reference_size


@dataclass(frozen=True, eq=False)
class ThicknessParameters:
    change: Tensor  # (n,) int8: 1 dilates, -1 erodes, 0 changes nothing


@dataclass(frozen=True)
class Thickness(Deformation):
    """Gray dilation or erosion with a square of `size` pixels, with probabilities `dilate` and `erode`.

    Dilation thickens light strokes on a dark background, as in MNIST. The default window is 2 × 2: erosion by 3 × 3
    leaves 18 % of the ink of MNIST's digits, and one digit in seven without a pixel above half brightness. The strength
    multiplies both probabilities, whose sum ends at 1.

    `reference_size` is the shorter side in pixels of the images for which `size` is given. A square of `size` pixels
    widens a stroke by size − 1 pixels; in images that are f times as large, the stroke widens by f times as many,
    rounded. None: `size` is in pixels of any image.

    >>> import torch, apac
    >>> apac.Thickness(dilate=1.0, erode=0.0)(torch.tensor([[[0.0, 1.0, 0.0]]]), generator=torch.Generator())
    tensor([[[1., 1., 0.]]])
    """

    input_types = ("images",)

    dilate: float = 0.25
    erode: float = 0.25
    size: int = 2
    reference_size: int | None = None

    def __post_init__(self) -> None:
        validate_number(self, "dilate", minimum=0, maximum=1)
        validate_number(self, "erode", minimum=0, maximum=1)
        validate_integer(self, "size", minimum=1, maximum=limits.WINDOW)
        validate_reference_size(self)
        if self.dilate + self.erode > 1:
            raise InputError(
                f"the probabilities of a Thickness must add up to at most 1, got dilate={self.dilate} and "
                f"erode={self.erode}."
            )

    def _scaled(self, strength: float) -> Thickness:
        changed = self.dilate + self.erode
        strength = min(strength, 1 / changed) if changed else strength
        dilate = min(1.0, strength * self.dilate)
        return replace(self, dilate=dilate, erode=min(1 - dilate, strength * self.erode))

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> ThicknessParameters:
        validate_image_shape(image_shape, max_side=limits.IMAGE_SIDE)
        uniform = torch.rand(n, generator=generator, device=generator.device, dtype=torch.float32)
        (values,) = as_arrays(uniform)
        dilated, changed = values < self.dilate, values < self.dilate + self.erode
        # 1 if dilated, −1 if eroded, 0 if neither
        return ThicknessParameters(torch.as_tensor(2 * dilated - 1 * changed, dtype=torch.int8))

    def window(self, image_size: tuple[int, int]) -> int:
        """Return the side of the square in pixels of an image (H, W)."""
        size = 1 + int((self.size - 1) * size_factor(self.reference_size, image_size) + 0.5)
        return min(size, 2 * max(image_size))  # a larger window shows nothing else

    def apply(self, images: Tensor, parameters: ThicknessParameters) -> Tensor:
        return apply_in_tiles(self._apply, images, prepare(images, parameters))

    def _apply(self, images: Tensor, parameters: ThicknessParameters) -> Tensor:
        if len(parameters.change) == 1 and int(parameters.change) == 0:
            return images
        kernels = kernels_for(images, parameters)
        if kernels is not None:
            return self._apply_kernel(kernels, images, parameters.change)
        if len(parameters.change) == 1:
            return self._morph(images, int(parameters.change))
        result = images.clone()
        for change in (1, -1):
            selected = parameters.change == change
            if selected.any():
                result[selected] = self._morph(images[selected], change)
        return result

    def _apply_kernel(self, kernels: Any, images: Tensor, change: Tensor) -> Tensor:
        # numba has no half precision; float32 represents the same numbers exactly
        pixels = images.detach().float() if images.dtype in (torch.float16, torch.bfloat16) else images.detach()
        out = torch.empty(images.shape, dtype=pixels.dtype, device="cpu")
        height, width = images.shape[2:]
        flat = pixels.flatten(2).contiguous().numpy(), change.contiguous().numpy()
        kernels.thickness(*flat, self.window((height, width)), height, width, out.flatten(2).numpy())
        return out.to(images.dtype)

    def _morph(self, images: Tensor, change: int) -> Tensor:
        """Return the extremum over a window.

        For an even size the window extends right and down in dilation, left and up in erosion, as in scipy.ndimage, so
        that erosion after dilation does not shift the image.
        """
        size = self.window((images.shape[2], images.shape[3]))
        before = size // 2 if change < 0 else (size - 1) // 2
        for axis in (2, 3):
            images = _extremum(images, axis, -before, size, torch.maximum if change > 0 else torch.minimum)
        return images


def _extremum(images: Tensor, axis: int, first: int, size: int, pick: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return the maximum or minimum over the window [i + first, i + first + size) of an axis, within the image."""
    length = images.shape[axis]
    indices = torch.arange(length, device=images.device)
    result = images
    for offset in range(first, first + size):
        if offset:
            result = pick(result, images.index_select(axis, (indices + offset).clamp(0, length - 1)))
    return result
