"""The transforms that people train with, of torchvision, kornia, albumentations, or their own, as deformations.

`before` and `after` are fixed preprocessing of the same library around the random part: a resize, a normalisation. They
are given one image at a time as the transform is.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """A function of one image (C, H, W) that draws from the global generator of torch, numpy or Python."""
    return _chain("from_callable", [before, function, after], lambda part: part)


def from_torchvision(transform: Part, *, before: Part | None = None, after: Part | None = None) -> Deformation:
    """A transform of torchvision, v1 or v2, that takes and returns tensors."""
    return _chain("from_torchvision", [before, transform, after], lambda part: part)


def from_kornia(transform: Part, *, before: Part | None = None, after: Part | None = None) -> Deformation:
    """An augmentation of kornia, or a sequence of them."""
    return _chain("from_kornia", [before, transform, after], _kornia)


def from_albumentations(transform: Part, *, before: Part | None = None, after: Part | None = None) -> Deformation:
    """A transform of albumentations 2, or a Compose of them. It sees (H, W, C) float32."""
    return _chain("from_albumentations", [before, transform, after], _albumentations)


def _chain(maker: str, parts: list[Part | None], adapt: Callable[[Part], Function]) -> Deformation:
    given = dict(zip(("before", "transform", "after"), parts, strict=True))
    for name, part in given.items():
        if not callable(part) and not (part is None and name != "transform"):
            raise InputError(f"{maker} takes a {name} that can be called with an image, got {part!r}.")
    functions = [adapt(part) for part in parts if part is not None]

    def chained(image: Tensor) -> Tensor:
        for function in functions:
            image = function(image)
        return image

    return Seeded(f"{maker}({_name(given['transform'])})", chained)


def _name(transform: Any) -> str:
    return getattr(transform, "__name__", type(transform).__name__)


def _kornia(transform: Part) -> Function:
    def one(image: Tensor) -> Tensor:
        result = transform(image[None])
        if not isinstance(result, Tensor) or len(result) != 1:
            got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise InputError(f"{_name(transform)} must make one image of one, a tensor (1, C, H, W), got {got}.")
        return result[0]

    return one


def _albumentations(transform: Part) -> Function:
    try:
        import albumentations
    except ImportError:
        raise InputError(
            "albumentations is not installed; install it, or this package with its extra: "
            "pip install 'augmented-pattern-classification[adapters]'"
        ) from None
    # Only a Compose can be given a seed.
    composed = transform if isinstance(transform, albumentations.Compose) else albumentations.Compose([transform])

    def one(image: Tensor) -> Tensor:
        composed.set_random_seed(int(np.random.randint(2**31)))
        result = composed(image=image.permute(1, 2, 0).float().numpy())["image"]
        if isinstance(result, Tensor):  # by ToTensorV2
            return result
        return torch.from_numpy(np.ascontiguousarray(result.reshape(*result.shape[:2], -1))).permute(2, 0, 1)

    return one
