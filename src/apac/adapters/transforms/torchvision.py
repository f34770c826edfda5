"""Transforms of torchvision, which draw once per call, for one image or a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from apac.adapters.transforms import constructor_call
from apac.adapters.transforms.image_transform import ImageTransform

MODULES = ("torchvision.transforms.v2", "torchvision.transforms")


@dataclass(frozen=True, eq=False)
class TorchvisionTransform(ImageTransform):
    """A transform of torchvision, v1 or v2, or a function of one image or a batch."""

    def one(self, image: Tensor) -> Any:
        return self.transform(image)

    def together(self, images: Tensor) -> Any:
        return self.transform(images)

    def describe(self) -> Any:
        return constructor_call.describe(self.transform, MODULES)

    @classmethod
    def rebuild(cls, payload: Any) -> TorchvisionTransform:
        return cls(constructor_call.build(payload, MODULES))
