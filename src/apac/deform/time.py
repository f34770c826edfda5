"""Deformations of the time axis, the last axis of a time series: a shift and a local change of speed.

Values between two time steps are interpolated linearly. Before the first and after the last time step the
edge value is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from apac import limits
from apac.deform.base import Deformation
from apac.deform.parameters import prepare
from apac.validation import validate_integer, validate_number


@dataclass(frozen=True, eq=False)
class TimeShiftParameters:
    shift: Tensor  # (n,), as a fraction of the duration


@dataclass(frozen=True)
class TimeShift(Deformation):
    """Shift a time series by U(-max_shift, max_shift) of its duration. The strength multiplies `max_shift`, up to 1.

    >>> import torch, apac
    >>> u = apac.TimeShift(max_shift=0.1)
    >>> u(torch.rand(8, 2, 1, 50), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([8, 2, 1, 50])
    """

    input_types = ("series",)

    max_shift: float = 0.1

    def __post_init__(self) -> None:
        validate_number(self, "max_shift", minimum=0, maximum=1)

    def _scaled(self, strength: float) -> TimeShift:
        return replace(self, max_shift=min(1.0, strength * self.max_shift))

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> TimeShiftParameters:
        uniform = torch.rand(n, generator=generator, device=generator.device, dtype=torch.float32)
        return TimeShiftParameters(self.max_shift * (2 * uniform - 1))

    def apply(self, images: Tensor, parameters: TimeShiftParameters) -> Tensor:
        parameters = prepare(images, parameters)
        steps = images.shape[-1]
        time = torch.arange(steps, device=images.device, dtype=torch.float64)
        return _interpolate(images, time - parameters.shift.double()[:, None] * steps)


@dataclass(frozen=True, eq=False)
class TimeWarpParameters:
    speed: Tensor  # (n, parts), relative: the fastest part has speed 1


@dataclass(frozen=True)
class TimeWarp(Deformation):
    """Divide a time series into equal parts and replay each part at a random speed exp(N(0, std²)).

    The first and the last time step stay fixed: only the ratios of the speeds matter. The strength multiplies `std`.

    >>> import torch, apac
    >>> u = apac.TimeWarp(std=0.3, parts=4)
    >>> u(torch.rand(8, 2, 1, 50), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([8, 2, 1, 50])
    """

    input_types = ("series",)

    std: float = 0.3
    parts: int = 4

    def __post_init__(self) -> None:
        validate_number(self, "std", minimum=0, maximum=limits.FACTOR)
        validate_integer(self, "parts", minimum=1, maximum=limits.TIME_PARTS)

    def _scaled(self, strength: float) -> TimeWarp:
        return replace(self, std=min(limits.FACTOR, strength * self.std))

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> TimeWarpParameters:
        noise = torch.randn(n, self.parts, generator=generator, device=generator.device, dtype=torch.float32)
        # Relative to the fastest part, so that the exponential cannot overflow.
        log_speed = self.std * noise
        return TimeWarpParameters(torch.exp(log_speed - log_speed.amax(dim=1, keepdim=True)))

    def apply(self, images: Tensor, parameters: TimeWarpParameters) -> Tensor:
        parameters = prepare(images, parameters)
        steps = images.shape[-1]
        speed = parameters.speed.double()
        parts = speed.shape[1]
        # input time, from 0 to 1, at the boundaries of the parts: (n, parts + 1)
        boundaries = torch.cat(
            [torch.zeros_like(speed[:, :1]), speed.cumsum(dim=1) / speed.sum(dim=1, keepdim=True)], dim=1
        )
        time = torch.linspace(0, parts, steps, device=images.device, dtype=torch.float64)  # output time, in parts
        part = time.long().clamp(max=parts - 1)  # (steps,)
        within = time - part
        input_time = boundaries[:, part] * (1 - within) + boundaries[:, part + 1] * within  # (n, steps)
        return _interpolate(images, input_time * (steps - 1))


def _interpolate(images: Tensor, time: Tensor) -> Tensor:
    """Interpolate images (N, C, H, steps) at fractional time steps (N, steps), or (1, steps) for all images."""
    steps = images.shape[-1]
    time = time.clamp(0, steps - 1)
    before = time.long().clamp(max=max(0, steps - 2))
    after = (before + 1).clamp(max=steps - 1)
    weight = (time - before).to(images.dtype)[:, None, None, :]

    def gather(index: Tensor) -> Tensor:
        return images.gather(-1, index[:, None, None, :].expand(*images.shape))

    return torch.lerp(gather(before), gather(after), weight)
