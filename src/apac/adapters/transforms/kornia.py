"""Augmentations of kornia, which take batches and draw for each image or, with `same_on_batch`, once."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from apac.adapters.transforms import constructor_call
from apac.adapters.transforms.image_transform import ImageTransform
from apac.errors import InputError

MODULES = ("kornia.augmentation", "kornia.augmentation.auto", "kornia.constants")


@dataclass(frozen=True, eq=False)
class KorniaTransform(ImageTransform):
    """An augmentation of kornia, or a function of a batch."""

    draws_separately: ClassVar[bool] = True
    # Copies, because the caller's training may use the module with other settings.
    _shared: Callable[..., Any] = field(init=False)
    _separate: Callable[..., Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_shared", _copy(self.transform, same_on_batch=True))
        object.__setattr__(self, "_separate", _copy(self.transform, same_on_batch=False))

    def one(self, image: Tensor) -> Any:
        result = self._shared(image[None])
        if not isinstance(result, Tensor) or len(result) != 1:
            got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise InputError(f"{self.name} must return one image for one image, a tensor (1, C, H, W), got {got}.")
        return result[0]

    def together(self, images: Tensor) -> Any:
        return self._shared(images)

    def separately(self, images: Tensor) -> Any:
        return self._separate(images)

    def describe(self) -> Any:
        return constructor_call.describe(self.transform, MODULES)

    @classmethod
    def rebuild(cls, payload: Any) -> KorniaTransform:
        return cls(constructor_call.build(payload, MODULES))


def _copy(transform: Callable[..., Any], *, same_on_batch: bool) -> Callable[..., Any]:
    if not isinstance(transform, nn.Module):
        return transform
    transform = copy.deepcopy(transform)
    for part in transform.modules():
        if hasattr(part, "same_on_batch"):
            part.same_on_batch = same_on_batch  # type: ignore[assignment]
    return transform
