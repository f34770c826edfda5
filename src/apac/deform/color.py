"""Gamma correction and color cast, the color processing that the paper names."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from apac import limits
from apac.deform.base import Deformation
from apac.deform.cpu import apply_in_tiles, kernels_for
from apac.deform.parameters import prepare
from apac.errors import InputError
from apac.validation import validate_number, validate_range

MIN_GAMMA, MAX_GAMMA = 1 / limits.FACTOR, limits.FACTOR


@dataclass(frozen=True, eq=False)
class ColorParameters:
    gamma: Tensor  # (n,)
    cast: Tensor  # (n, C)


@dataclass(frozen=True)
class Color(Deformation):
    """Gamma correction and color cast, pixel → pixel^γ + cast, for pixels in [0, 1].

    ln γ is uniform between the logarithms of the range `gamma`, so that darkening and lightening are equally likely.
    The cast of each channel is N(0, cast²). The result is clamped to [0, 1]. The paper gives no values; the defaults
    are mild. The strength multiplies ln γ and the cast.

    >>> import torch, apac
    >>> u = apac.Color(gamma=(0.8, 1.25), cast=0.05)
    >>> u(torch.rand(8, 3, 32, 32), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([8, 3, 32, 32])
    """

    input_types = ("images",)

    gamma: tuple[float, float] = (2 / 3, 3 / 2)
    cast: float = 0.05

    def __post_init__(self) -> None:
        validate_range(self, "gamma", minimum=MIN_GAMMA, maximum=MAX_GAMMA)
        validate_number(self, "cast", minimum=0, maximum=limits.FACTOR)

    def _scaled(self, strength: float) -> Color:
        low, high = (_clamped(strength * math.log(gamma)) for gamma in self.gamma)
        return replace(self, gamma=(low, high), cast=strength * self.cast)

    @property
    def expects_pixels(self) -> bool:
        return True

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> ColorParameters:
        low, high = math.log(self.gamma[0]), math.log(self.gamma[1])
        uniform = torch.rand(n, generator=generator, device=generator.device, dtype=torch.float32)
        noise = torch.randn(n, image_shape[0], generator=generator, device=generator.device, dtype=torch.float32)
        return ColorParameters(torch.exp(low + (high - low) * uniform), self.cast * noise)

    def apply(self, images: Tensor, parameters: ColorParameters) -> Tensor:
        return apply_in_tiles(self._apply, images, prepare(images, parameters))

    def _apply(self, images: Tensor, parameters: ColorParameters) -> Tensor:
        if parameters.cast.shape[1] != images.shape[1]:
            raise InputError(
                f"these color parameters were sampled for {parameters.cast.shape[1]} channels; "
                f"sample them for {images.shape[1]}."
            )
        kernels = kernels_for(images, parameters) if images.dtype == torch.float32 else None
        if kernels is not None:
            pixels = images.detach().contiguous()
            result = torch.empty_like(pixels)
            arrays = pixels.flatten(2), parameters.gamma.contiguous(), parameters.cast.contiguous(), result.flatten(2)
            kernels.color(*[array.numpy() for array in arrays])
            return result
        gamma = parameters.gamma.to(images.dtype)[:, None, None, None]
        cast = parameters.cast.to(images.dtype)[:, :, None, None]
        return (images.clamp(0, 1) ** gamma + cast).clamp(0, 1)


def _clamped(log_gamma: float) -> float:
    """Return exp(log_gamma) within the range of gammas; the logarithm may be too large for an exponential."""
    return math.exp(min(math.log(MAX_GAMMA), max(math.log(MIN_GAMMA), log_gamma)))
