"""The transforms that people train with, of torchvision, kornia, albumentations, or their own, as deformations."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apac.adapters.seeded import Function, Seeded
from apac.deform.base import Deformation
from apac.errors import InputError

Part = Callable[..., Any]


def from_callable(
    function: Callable[[Tensor], Tensor],
    *,
    before: Callable[[Tensor], Tensor] | None = None,
    after: Callable[[Tensor], Tensor] | None = None,
) -> Deformation:
    """A function of one image (C, H, W) that draws from the global generator of torch, numpy or Python.

    `before` and `after` are fixed preprocessing around it, a resize or a normalization; plain prediction has them too.
    """
    return _chain("from_callable", before, function, after, lambda part: part)


def from_torchvision(transform: Part, *, before: Part | None = None, after: Part | None = None) -> Deformation:
    """A transform of torchvision, v1 or v2, of tensors: leave out `ToTensor`, images are tensors already.

    `before` and `after` are fixed preprocessing around it, a resize or a normalization; plain prediction has them too.
    """
    return _chain("from_torchvision", before, transform, after, lambda part: part)


def from_kornia(transform: Part, *, before: Part | None = None, after: Part | None = None) -> Deformation:
    """An augmentation of kornia, or a sequence of them. What mixes images, MixUp and CutMix, has none to mix here.

    `before` and `after` are fixed preprocessing around it, a resize or a normalization; plain prediction has them too.
    """
    return _chain("from_kornia", before, transform, after, Kornia)


def from_albumentations(transform: Part, *, before: Part | None = None, after: Part | None = None) -> Deformation:
    """A transform of albumentations 2, or a Compose of them. It sees (H, W, C) float32, for which the library expects
    values from 0 to 1: normalize by `after`, with `max_pixel_value=1.0`.

    `before` and `after` are fixed preprocessing around it, a resize or a normalization; plain prediction has them too.
    """
    return _chain("from_albumentations", before, transform, after, Albumentations.of)


def _chain(
    maker: str, before: Part | None, transform: Part, after: Part | None, adapt: Callable[[Part], Function]
) -> Deformation:
    for name, part in {"a transform": transform, "a before": before, "an after": after}.items():
        if not callable(part) and (part is not None or name == "a transform"):
            raise InputError(f"{maker} takes {name} that can be called with an image, got {part!r}.")
    fixed = [None if part is None else adapt(part) for part in (before, after)]
    return Seeded(f"{maker}({_name(transform)})", fixed[0], adapt(transform), fixed[1])


def _name(transform: Any) -> str:
    return getattr(transform, "__name__", type(transform).__name__)


@dataclass(frozen=True)
class Kornia:
    """An augmentation of batches, given one image."""

    transform: Part

    def __call__(self, image: Tensor) -> Tensor:
        result = self.transform(image[None])
        if not isinstance(result, Tensor) or len(result) != 1:
            got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise InputError(f"{_name(self.transform)} must make one image of one, a tensor (1, C, H, W), got {got}.")
        return result[0]


@dataclass(frozen=True)
class Albumentations:
    """A Compose, which alone can be given a seed, of arrays (H, W, C)."""

    composed: Any

    @staticmethod
    def of(transform: Part) -> Albumentations:
        try:
            import albumentations
        except ImportError:
            raise InputError(
                "albumentations is not installed; install it, or this package with its extra: "
                "pip install 'augmented-pattern-classification[adapters]'"
            ) from None
        if not isinstance(transform, albumentations.BasicTransform | albumentations.BaseCompose):
            raise InputError(
                f"from_albumentations takes transforms of albumentations, got {_name(transform)}; from_callable takes "
                f"functions of tensors."
            )
        own = copy.deepcopy(transform)  # the seeds of a decision are no business of the training that shares it
        return Albumentations(own if isinstance(own, albumentations.Compose) else albumentations.Compose([own]))

    def __call__(self, image: Tensor) -> Tensor:
        self.composed.set_random_seed(int(np.random.randint(2**31)))
        array = image.detach().cpu().permute(1, 2, 0).float().numpy()
        result = self.composed(image=array)["image"]
        if not isinstance(result, Tensor):  # unless ToTensorV2 made one
            result = torch.from_numpy(np.ascontiguousarray(result.reshape(*result.shape[:2], -1))).permute(2, 0, 1)
        return result.to(image.device)
