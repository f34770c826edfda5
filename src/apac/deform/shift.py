"""Shift by whole pixels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from apac import limits
from apac.deform.base import Deformation
from apac.deform.parameters import prepare
from apac.validation import validate_integer


@dataclass(frozen=True, eq=False)
class ShiftParameters:
    shift: Tensor  # (n, 2) int64, right and down, in pixels


@dataclass(frozen=True)
class Shift(Deformation):
    """Shift an image by up to `max_shift` whole pixels along each axis. Its own reflection fills the gap.

    All (2 · max_shift + 1)² shifts are equally likely, so that `Exhaustive` can average over them. The strength
    multiplies `max_shift`, rounded to whole pixels.

    >>> import torch, apac
    >>> u = apac.Shift(max_shift=1)
    >>> u(torch.rand(8, 3, 32, 32), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([8, 3, 32, 32])
    """

    input_types = ("images",)

    max_shift: int = 2

    def __post_init__(self) -> None:
        validate_integer(self, "max_shift", minimum=0, maximum=limits.SHIFT)

    def _scaled(self, strength: float) -> Shift:
        return replace(self, max_shift=int(strength * self.max_shift + 0.5))

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> ShiftParameters:
        uniform = torch.rand(n, 2, generator=generator, device=generator.device, dtype=torch.float32)
        values = 2 * self.max_shift + 1
        return ShiftParameters((uniform * values).long().clamp(max=values - 1) - self.max_shift)

    def values(self, image_shape: tuple[int, int, int]) -> ShiftParameters:
        shifts = torch.arange(-self.max_shift, self.max_shift + 1)
        return ShiftParameters(torch.cartesian_prod(shifts, shifts))

    def apply(self, images: Tensor, parameters: ShiftParameters) -> Tensor:
        parameters = prepare(images, parameters)
        height, width = images.shape[2:]
        rows = _reflected(torch.arange(height, device=images.device) - parameters.shift[:, 1:], height)  # (n, H)
        columns = _reflected(torch.arange(width, device=images.device) - parameters.shift[:, :1], width)  # (n, W)
        if len(rows) == 1:
            return images.index_select(2, rows[0]).index_select(3, columns[0])
        image = torch.arange(len(images), device=images.device)[:, None, None, None]
        channel = torch.arange(images.shape[1], device=images.device)[:, None, None]
        return images[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _reflected(index: Tensor, length: int) -> Tensor:
    """Map indices outside 0 … length - 1 back inside, as if between two mirrors: -1 to 1, and length to length - 2."""
    period = max(1, 2 * (length - 1))
    index = index.remainder(period)
    return torch.minimum(index, period - index)
