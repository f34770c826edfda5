"""Normalization of pixels. A run stores it, so that training and testing use the same one.

`apply` converts pixels to the images that are deformed: values in 0 … 1, which deformations of brightness and color
expect, or whitened values in the paper's CIFAR-10 experiments. `standardize` converts deformed images to inputs of the
network, and `in_front_of` builds a network that includes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from apac.data.base import Unstandardized, check_pixels, scale_pixels
from apac.data.mapped import StoredImages, part_size
from apac.data.zca import Whitening
from apac.errors import InputError
from apac.validation import quoted

PART = 1000  # images that are counted at once


@dataclass(frozen=True, eq=False)
class Identity(Unstandardized):
    """No change, for floating-point images."""

    kind: ClassVar[str] = "none"

    def apply(self, images: Tensor) -> Tensor:
        """Return floating-point images (N, C, H, W) unchanged."""
        if not isinstance(images, Tensor) or images.ndim != 4 or not images.is_floating_point():
            got = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
            raise InputError(f"images must be a floating-point tensor (N, C, H, W), got {got}.")
        return images

    def tensors(self) -> dict[str, Tensor]:
        return {}


@dataclass(frozen=True, eq=False)
class Scaling(Unstandardized):
    """pixels / 255: from 0 to 1."""

    kind: ClassVar[str] = "scaling"

    def apply(self, images: Tensor) -> Tensor:
        """Convert (N, C, H, W) uint8 to (N, C, H, W) float32."""
        check_pixels(images)
        return scale_pixels(images)

    def tensors(self) -> dict[str, Tensor]:
        return {}


@dataclass(frozen=True, eq=False)
class Standardization:
    """(image − mean) / standard deviation per channel, after the deformation of an image of pixels / 255."""

    mean: Tensor  # (C,) float32
    deviation: Tensor  # (C,) float32, above 0

    kind: ClassVar[str] = "standardization"

    def __post_init__(self) -> None:
        if self.mean.ndim != 1 or self.mean.shape != self.deviation.shape or not (self.deviation > 0).all():
            raise InputError(
                f"a standardization has a mean and a positive deviation for each channel, got {self.mean.tolist()} and "
                f"{self.deviation.tolist()}."
            )

    def apply(self, images: Tensor) -> Tensor:
        """Convert (N, C, H, W) uint8 to (N, C, H, W) float32 in 0 … 1."""
        check_pixels(images)
        if images.shape[1] != len(self.mean):
            raise InputError(f"this normalization was fitted on {len(self.mean)} channels, got {images.shape[1]}.")
        return scale_pixels(images)

    def standardize(self, images: Tensor) -> Tensor:
        mean, deviation = self.mean.to(images), self.deviation.to(images)
        return (images - mean[:, None, None]) / deviation[:, None, None]

    def in_front_of(self, network: nn.Module) -> nn.Module:
        first = Standardize(self.mean, self.deviation)
        device = next((parameter.device for parameter in network.parameters()), None)
        return nn.Sequential(first.to(device), network)

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "deviation": self.deviation}

    @staticmethod
    def fit(images: Tensor | StoredImages) -> Standardization:
        if isinstance(images, Tensor):
            check_pixels(images)
        if not len(images):
            raise InputError("fitting a normalization needs at least one image, got none.")
        # By histogram: exact, and without a copy of the images as floating-point numbers.
        counts = torch.stack([_histograms(part) for part in images.split(part_size(images.shape[1:], PART))]).sum(dim=0)
        shares = counts.double() / counts.sum(dim=1, keepdim=True)  # (C, 256)
        values = torch.arange(256, dtype=torch.float64) / 255
        mean = shares @ values
        variance = (shares * (values - mean[:, None]) ** 2).sum(dim=1)
        return Standardization(mean.float(), variance.sqrt().clamp_min(1e-3).float())

    @staticmethod
    def fit_float(parts: Iterable[Tensor]) -> Standardization:
        """Fit on the floating-point images (n, C, H, W) of all parts."""
        count, total, squares = 0, torch.zeros(()), torch.zeros(())
        for part in parts:
            values = part.transpose(0, 1).flatten(1).double()  # (C, n · H · W)
            count, total, squares = count + values.shape[1], total + values.sum(1), squares + values.square().sum(1)
        mean = total / count
        variance = (squares / count - mean.square()).clamp_min(0)
        return Standardization(mean.float(), variance.sqrt().clamp_min(1e-3).float())


def _histograms(images: Tensor) -> Tensor:
    """Return how often each channel has each value, (C, 256)."""
    return torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)])


class Standardize(nn.Module):
    """`Standardization.standardize` as the first layer of a network."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean[:, None, None])
        self.register_buffer("deviation", deviation[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.deviation


Normalization = Identity | Scaling | Standardization | Whitening


def normalization_shapes(kind: str, image_shape: tuple[int, int, int]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the `tensors()` of a normalization of this kind, for images of shape (C, H, W)."""
    channels, size = image_shape[0], math.prod(image_shape)
    shapes: dict[str, dict[str, tuple[int, ...]]] = {
        Identity.kind: {},
        Scaling.kind: {},
        Standardization.kind: {"mean": (channels,), "deviation": (channels,)},
        Whitening.kind: {"mean": (size,), "triangle": (size * (size + 1) // 2,)},
    }
    if not isinstance(kind, str) or kind not in shapes:
        raise InputError(f"there is no normalization {quoted(kind)}; this version has {', '.join(shapes)}.")
    return shapes[kind]


def normalization_from(kind: str, tensors: Mapping[str, Tensor]) -> Normalization:
    """Restore a normalization from its `kind` and `tensors()`."""
    check_tensor_names(kind, tensors)
    tensors = {name: tensor.float() for name, tensor in tensors.items()}
    if kind == Standardization.kind:
        return Standardization(**tensors)
    if kind == Whitening.kind:
        return Whitening.from_tensors(**tensors)
    return Scaling() if kind == Scaling.kind else Identity()


def check_tensor_names(kind: str, tensors: Iterable[str]) -> None:
    """Raise InputError unless these are the names of the tensors of a normalization."""
    names = set(normalization_shapes(kind, (1, 1, 1)))
    if set(tensors) != names:
        raise InputError(
            f"the normalization {kind!r} needs the tensors {sorted(names)}, got {quoted(sorted(tensors))}; "
            "the run is damaged or from an earlier version; train it again."
        )
