"""Transforms of torchvision, kornia and albumentations, and your own functions, as deformations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor

from apac.adapters.transforms.albumentations import AlbumentationsTransform
from apac.adapters.transforms.image_transform import CallableTransform, ImageTransform
from apac.adapters.transforms.kornia import KorniaTransform
from apac.adapters.transforms.seeded import SeededTransform
from apac.adapters.transforms.torchvision import TorchvisionTransform
from apac.deform.base import Deformation
from apac.errors import InputError

Transform = Callable[..., Any]


class CallableDeformation(SeededTransform):
    _json_kind = "from_callable"
    transform_type: ClassVar[type[ImageTransform]] = CallableTransform


class TorchvisionDeformation(SeededTransform):
    _json_kind = "from_torchvision"
    transform_type: ClassVar[type[ImageTransform]] = TorchvisionTransform


class KorniaDeformation(SeededTransform):
    _json_kind = "from_kornia"
    transform_type: ClassVar[type[ImageTransform]] = KorniaTransform


class AlbumentationsDeformation(SeededTransform):
    _json_kind = "from_albumentations"
    transform_type: ClassVar[type[ImageTransform]] = AlbumentationsTransform


def from_callable(
    function: Callable[[Tensor], Tensor],
    *,
    before: Callable[[Tensor], Tensor] | None = None,
    after: Callable[[Tensor], Tensor] | None = None,
) -> Deformation:
    """Wrap a function of one image (C, H, W) that draws from the global generator of torch, numpy or Python.

    It is called once for each image and pass, and a run cannot store it.

    `before` and `after` are deterministic preprocessing steps, such as a resize or a normalization, which the plain
    prediction also uses.

    >>> import torch, apac
    >>> u = apac.from_callable(lambda image: image * (0.8 + 0.4 * torch.rand(())))
    >>> u(torch.rand(8, 3, 16, 16), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([8, 3, 16, 16])
    """
    return _deformation(CallableDeformation, before, function, after)


def from_torchvision(
    transform: Transform, *, before: Transform | None = None, after: Transform | None = None
) -> Deformation:
    """Wrap a torchvision transform of tensors, v1 or v2. Omit `ToTensor`: images are already tensors.

    Images that share the parameters of a pass are transformed in one call. In training, each image has a call of its
    own, because torchvision draws once per call.

    `before` and `after` are deterministic preprocessing steps, such as a resize or a normalization, which the plain
    prediction also uses.

    >>> import apac
    >>> from torchvision.transforms import v2
    >>> apac.from_torchvision(v2.RandomAffine(15), after=v2.Normalize([0.5], [0.25]))
    from_torchvision(RandomAffine)
    """
    return _deformation(TorchvisionDeformation, before, transform, after)


def from_kornia(
    transform: Transform, *, before: Transform | None = None, after: Transform | None = None
) -> Deformation:
    """Wrap a kornia augmentation or a sequence of them.

    Images that share the parameters of a pass are transformed in one call, by a copy with `same_on_batch=True`; in
    training, a copy with `same_on_batch=False` draws for each image. Transforms that mix images, such as MixUp and
    CutMix, run image by image and have nothing to mix with.

    `before` and `after` are deterministic preprocessing steps, such as a resize or a normalization, which the plain
    prediction also uses.

    >>> import apac
    >>> import kornia.augmentation as K
    >>> apac.from_kornia(K.RandomAffine(15.0))
    from_kornia(RandomAffine)
    """
    return _deformation(KorniaDeformation, before, transform, after)


def from_albumentations(
    transform: Transform, *, before: Transform | None = None, after: Transform | None = None
) -> Deformation:
    """Wrap an albumentations 2 transform or a Compose of them.

    Its input is a float32 array (H, W, C), in which albumentations expects values in [0, 1]. Normalize in `after`, with
    `max_pixel_value=1.0`. Images that share the parameters of a pass are transformed together, as the target `images`,
    in as many threads as OpenCV may use (`cv2.setNumThreads`).

    `before` and `after` are deterministic preprocessing steps, such as a resize or a normalization, which the plain
    prediction also uses.

    >>> import albumentations as A
    >>> import apac
    >>> apac.from_albumentations(A.Affine(rotate=(-15, 15)))
    from_albumentations(Affine)
    """
    return _deformation(AlbumentationsDeformation, before, transform, after)


def _deformation(
    kind: type[SeededTransform], before: Transform | None, transform: Transform, after: Transform | None
) -> Deformation:
    for name, argument in {"transform": transform, "before": before, "after": after}.items():
        if not callable(argument) and (argument is not None or name == "transform"):
            raise InputError(f"the {name} of {kind._json_kind} must be callable with an image, got {argument!r}.")
    adapt = kind.transform_type
    return kind(None if before is None else adapt(before), adapt(transform), None if after is None else adapt(after))
