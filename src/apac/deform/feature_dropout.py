"""Feature dropout: replace random elements of a vector."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from apac import limits
from apac.deform.base import Deformation
from apac.deform.parameters import check_same_shape, prepare
from apac.validation import validate_image_shape, validate_number


@dataclass(frozen=True, eq=False)
class FeatureDropoutParameters:
    dropped: Tensor  # (n, C, H, W) bool


@dataclass(frozen=True)
class FeatureDropout(Deformation):
    """Replace each element by `value` with probability p, independently.

    The default value 0 is the mean of a standardized feature. The strength multiplies p, up to 1.

    >>> import torch, apac
    >>> apac.FeatureDropout(p=1.0)(torch.ones(1, 1, 3), generator=torch.Generator().manual_seed(0))
    tensor([[[0., 0., 0.]]])
    """

    p: float = 0.1
    value: float = 0.0

    def __post_init__(self) -> None:
        validate_number(self, "p", minimum=0, maximum=1)
        validate_number(self, "value", minimum=-limits.ABS_VALUE, maximum=limits.ABS_VALUE)

    def _scaled(self, strength: float) -> FeatureDropout:
        return replace(self, p=min(1.0, strength * self.p))

    def sample(
        self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator
    ) -> FeatureDropoutParameters:
        validate_image_shape(image_shape)
        return FeatureDropoutParameters(
            torch.rand(n, *image_shape, generator=generator, device=generator.device, dtype=torch.float32) < self.p
        )

    def apply(self, images: Tensor, parameters: FeatureDropoutParameters) -> Tensor:
        parameters = prepare(images, parameters)
        check_same_shape(images, parameters.dropped)
        return torch.where(parameters.dropped, self.value, images)
