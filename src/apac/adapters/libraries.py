"""Transforms of torchvision, kornia and albumentations, and your own functions, as deformations."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apac.adapters.seeded import Function, SeededTransform
from apac.deform.base import Deformation
from apac.errors import InputError, require

Transform = Callable[..., Any]


def from_callable(
    function: Callable[[Tensor], Tensor],
    *,
    before: Callable[[Tensor], Tensor] | None = None,
    after: Callable[[Tensor], Tensor] | None = None,
) -> Deformation:
    """Wrap a function of one image (C, H, W) that draws from the global generator of torch, numpy or Python.

    `before` and `after` are deterministic preprocessing steps, such as a resize or a normalization, which the plain
    prediction also uses.

    >>> import torch, apac
    >>> u = apac.from_callable(lambda image: image * (0.8 + 0.4 * torch.rand(())))
    >>> u(torch.rand(8, 3, 16, 16), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([8, 3, 16, 16])
    """
    return _deformation("from_callable", before, function, after, lambda transform: transform)


def from_torchvision(
    transform: Transform, *, before: Transform | None = None, after: Transform | None = None
) -> Deformation:
    """Wrap a torchvision transform of tensors, v1 or v2. Omit `ToTensor`: images are already tensors.

    `before` and `after` are deterministic preprocessing steps, such as a resize or a normalization, which the plain
    prediction also uses.

    >>> import apac
    >>> from torchvision.transforms import v2
    >>> apac.from_torchvision(v2.RandomAffine(15), after=v2.Normalize([0.5], [0.25]))
    from_torchvision(RandomAffine)
    """
    return _deformation("from_torchvision", before, transform, after, lambda transform: transform)


def from_kornia(
    transform: Transform, *, before: Transform | None = None, after: Transform | None = None
) -> Deformation:
    """Wrap a kornia augmentation or a sequence of them.

    MixUp and CutMix are not supported, because images are transformed one at a time.

    `before` and `after` are deterministic preprocessing steps, such as a resize or a normalization, which the plain
    prediction also uses.

    >>> import apac
    >>> import kornia.augmentation as K
    >>> apac.from_kornia(K.RandomAffine(15.0))
    from_kornia(RandomAffine)
    """
    return _deformation("from_kornia", before, transform, after, KorniaFunction)


def from_albumentations(
    transform: Transform, *, before: Transform | None = None, after: Transform | None = None
) -> Deformation:
    """Wrap an albumentations 2 transform or a Compose of them.

    Its input is a float32 array (H, W, C), in which albumentations expects values in [0, 1]. Normalize in `after`, with
    `max_pixel_value=1.0`.

    `before` and `after` are deterministic preprocessing steps, such as a resize or a normalization, which the plain
    prediction also uses.

    >>> import albumentations as A
    >>> import apac
    >>> apac.from_albumentations(A.Affine(rotate=(-15, 15)))
    from_albumentations(Affine)
    """
    return _deformation("from_albumentations", before, transform, after, AlbumentationsFunction.wrap)


def _deformation(
    caller: str,
    before: Transform | None,
    transform: Transform,
    after: Transform | None,
    adapt: Callable[[Transform], Function],
) -> Deformation:
    for name, argument in {"transform": transform, "before": before, "after": after}.items():
        if not callable(argument) and (argument is not None or name == "transform"):
            raise InputError(f"the {name} of {caller} must be callable with an image, got {argument!r}.")
    preprocessing = [None if part is None else adapt(part) for part in (before, after)]
    return SeededTransform(f"{caller}({_name(transform)})", preprocessing[0], adapt(transform), preprocessing[1])


def _name(transform: Any) -> str:
    return getattr(transform, "__name__", type(transform).__name__)


@dataclass(frozen=True)
class KorniaFunction:
    """An augmentation of batches as a function of one image."""

    transform: Transform

    def __call__(self, image: Tensor) -> Tensor:
        result = self.transform(image[None])
        if not isinstance(result, Tensor) or len(result) != 1:
            got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise InputError(
                f"{_name(self.transform)} must return one image for one image, a tensor (1, C, H, W), got {got}."
            )
        return result[0]


@dataclass(frozen=True)
class AlbumentationsFunction:
    """An albumentations Compose, the only transform that takes a seed, as a function of a tensor."""

    compose: Any

    @staticmethod
    def wrap(transform: Transform) -> AlbumentationsFunction:
        albumentations = require("albumentations", extra="adapters")
        if not isinstance(transform, albumentations.BasicTransform | albumentations.BaseCompose):
            raise InputError(
                f"from_albumentations takes albumentations transforms, got {_name(transform)}; use from_callable for "
                f"functions of tensors."
            )
        # A copy, because seeding the caller's object would also affect the caller's training.
        transform = copy.deepcopy(transform)
        if not isinstance(transform, albumentations.Compose):
            transform = albumentations.Compose([transform])
        return AlbumentationsFunction(transform)

    def __call__(self, image: Tensor) -> Tensor:
        self.compose.set_random_seed(int(np.random.randint(2**31)))
        array = image.detach().cpu().permute(1, 2, 0).float().numpy()  # (H, W, C)
        result = self.compose(image=array)["image"]
        if not isinstance(result, Tensor):  # ToTensorV2 returns a tensor
            result = torch.from_numpy(np.ascontiguousarray(result.reshape(*result.shape[:2], -1))).permute(2, 0, 1)
        return result.to(image.device)
