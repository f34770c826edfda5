"""Random amplitude of each channel of a time series."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from apac import limits
from apac.deform.base import Deformation
from apac.deform.parameters import check_same_shape, prepare
from apac.validation import validate_number


@dataclass(frozen=True, eq=False)
class AmplitudeParameters:
    factor: Tensor  # (n, C, 1, 1)


@dataclass(frozen=True)
class Amplitude(Deformation):
    """Multiply each channel by a random factor exp(N(0, std²)), whose median is 1. The strength multiplies `std`.

    >>> import torch, apac
    >>> apac.Amplitude(0.1)(torch.ones(8, 2, 1, 50), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([8, 2, 1, 50])
    """

    input_types = ("series",)

    std: float = 0.1

    def __post_init__(self) -> None:
        validate_number(self, "std", minimum=0, maximum=limits.LOG_STD)

    def _scaled(self, strength: float) -> Amplitude:
        return replace(self, std=min(limits.LOG_STD, strength * self.std))

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> AmplitudeParameters:
        noise = torch.randn(n, image_shape[0], 1, 1, generator=generator, device=generator.device, dtype=torch.float32)
        return AmplitudeParameters(torch.exp(self.std * noise))

    def apply(self, images: Tensor, parameters: AmplitudeParameters) -> Tensor:
        parameters = prepare(images, parameters)
        check_same_shape(images[..., :1, :1], parameters.factor)
        return images * parameters.factor.to(images.dtype)
