"""Time of a series, which runs along the last axis: shifted, or faster here and slower there.

Values between two moments are interpolated; before the first and after the last moment they repeat.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from apac.deform.base import Deformation, prepare
from apac.validation import validate_integer, validate_number


@dataclass(frozen=True, eq=False)
class TimeShiftParameters:
    shift: Tensor  # (n,), of the whole duration


@dataclass(frozen=True)
class TimeShift(Deformation):
    """Moves a series by U(-most, most) of its duration."""

    max_shift: float = 0.1

    def __post_init__(self) -> None:
        validate_number(self, "max_shift", minimum=0, maximum=1)

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> TimeShiftParameters:
        uniform = torch.rand(n, generator=generator, device=generator.device)
        return TimeShiftParameters(self.max_shift * (2 * uniform - 1))

    def apply(self, images: Tensor, parameters: TimeShiftParameters) -> Tensor:
        parameters = prepare(images, parameters)
        moments = images.shape[-1]
        now = torch.arange(moments, device=images.device, dtype=torch.float64)
        return _at(images, now - parameters.shift.double()[:, None] * moments)


@dataclass(frozen=True, eq=False)
class TimeWarpParameters:
    speed: Tensor  # (n, parts)


@dataclass(frozen=True)
class TimeWarp(Deformation):
    """Time passes at speeds exp(N(0, std²)) in equal parts of the series; beginning and end stay where they are."""

    std: float = 0.3
    parts: int = 4

    def __post_init__(self) -> None:
        validate_number(self, "std", minimum=0)
        validate_integer(self, "parts", minimum=1)

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> TimeWarpParameters:
        noise = torch.randn(n, self.parts, generator=generator, device=generator.device)
        # Only how the speeds compare matters: the fastest is 1.
        speed = self.std * noise
        return TimeWarpParameters(torch.exp(speed - speed.amax(dim=1, keepdim=True)))

    def apply(self, images: Tensor, parameters: TimeWarpParameters) -> Tensor:
        parameters = prepare(images, parameters)
        moments = images.shape[-1]
        speed = parameters.speed.double()
        parts = speed.shape[1]
        # the time of the series at the ends of the parts, 0 … 1
        ends = torch.cat([torch.zeros_like(speed[:, :1]), speed.cumsum(dim=1) / speed.sum(dim=1, keepdim=True)], dim=1)
        now = torch.linspace(0, parts, moments, device=images.device, dtype=torch.float64)  # in parts
        part = now.long().clamp(max=parts - 1)  # (moments,)
        within = now - part
        return _at(images, (ends[:, part] * (1 - within) + ends[:, part + 1] * within) * (moments - 1))


def _at(images: Tensor, when: Tensor) -> Tensor:
    """Images (N, C, H, moments) at the moments `when` (n, moments), for each image its own or one for all."""
    moments = images.shape[-1]
    when = when.clamp(0, moments - 1)
    before = when.long().clamp(max=max(0, moments - 2))
    after = (before + 1).clamp(max=moments - 1)
    weight = (when - before).to(images.dtype)[:, None, None, :]

    def taken(index: Tensor) -> Tensor:
        return images.gather(-1, index[:, None, None, :].expand(*images.shape))

    return torch.lerp(taken(before), taken(after), weight)
