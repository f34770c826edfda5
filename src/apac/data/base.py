"""The data set type that the rest of the package uses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from apac.data.mapped import StoredImages
from apac.errors import InputError


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labeled training and test images, with the pixel values of the source. Test images may be missing, (0, C, H, W).

    >>> import torch, apac
    >>> images, labels = torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1])
    >>> apac.Dataset("two", images, labels, images, labels, ("a", "b")).image_shape
    (1, 8, 8)
    """

    name: str
    train_images: Tensor  # (N, C, H, W) uint8, or floating-point; or StoredImages, which are indexed alike
    train_labels: Tensor  # (N,) int64
    test_images: Tensor  # (N', C, H, W), of the same type
    test_labels: Tensor  # (N',) int64
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(self.classes))
        for part in ("train", "test"):
            images, labels = getattr(self, f"{part}_images"), getattr(self, f"{part}_labels")
            check_images(images, f"{part}_images")
            check_labels(labels, len(images), len(self.classes), f"{part}_labels")
            if isinstance(images, Tensor):
                object.__setattr__(self, f"{part}_images", images.detach())
            object.__setattr__(self, f"{part}_labels", labels.to(torch.int64))
        train, test = self.train_images, self.test_images
        if (train.shape[1:], train.dtype) != (test.shape[1:], test.dtype):
            raise InputError(
                f"training and test images must have one shape and type, got {train.dtype} {tuple(train.shape)} and "
                f"{test.dtype} {tuple(test.shape)}; convert both alike."
            )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        channels, height, width = self.train_images.shape[1:]
        return channels, height, width


class Unstandardized:
    """Base class of the normalizations that end before the deformation, see apac.data.normalize."""

    def standardize(self, images: Tensor) -> Tensor:
        return images

    def in_front_of(self, network: nn.Module) -> nn.Module:
        return network


def check_pixels(images: Tensor) -> None:
    """Raise InputError unless images are uint8 pixels of shape (N, C, H, W)."""
    if not isinstance(images, Tensor) or images.ndim != 4 or images.dtype != torch.uint8:
        raise InputError(f"images must be a uint8 tensor of shape (N, C, H, W), got {_describe(images)}.")


def scale_pixels(images: Tensor) -> Tensor:
    """Convert uint8 pixels to float32 in 0 … 1. Floating-point images are returned unchanged."""
    return images.float().div_(255) if images.dtype == torch.uint8 else images


def check_images(images: Tensor | StoredImages, name: str = "images") -> None:
    """Raise InputError unless images are uint8 or finite floating-point, of shape (N, C, H, W)."""
    if isinstance(images, StoredImages):
        return
    tensor = isinstance(images, Tensor)
    if not tensor or images.ndim != 4 or not (images.dtype == torch.uint8 or images.is_floating_point()):
        raise InputError(f"{name} must be uint8 or floating-point (N, C, H, W), got {_describe(images)}.")
    _, channels, _, width = images.shape
    if images.dtype == torch.uint8 and width in (1, 3, 4) and channels > 4:
        raise InputError(
            f"{name} must have the shape (N, C, H, W), got {tuple(images.shape)}, which looks like (N, H, W, C); pass "
            f"images.permute(0, 3, 1, 2)."
        )
    if images.is_floating_point() and not images.isfinite().all():
        raise InputError(f"{name} must be finite, got NaN or an infinite value; fix or remove these images.")


def check_labels(labels: Tensor, count: int, classes: int | None = None, name: str = "labels") -> None:
    """Raise InputError unless labels are `count` integers, from 0 to classes − 1 if the number of classes is known."""
    tensor = isinstance(labels, Tensor)
    if not tensor or labels.shape != (count,) or labels.is_floating_point() or labels.dtype == torch.bool:
        raise InputError(f"{name} must be {count:,} integers, one per image, got {_describe(labels)}.")
    if count and classes is not None and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise InputError(
            f"{name} must be between 0 and {classes - 1} for {classes} classes, got {int(labels.min())} to "
            f"{int(labels.max())}."
        )


def _describe(value: object) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
