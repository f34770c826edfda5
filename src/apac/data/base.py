"""The data set type that the rest of the package uses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from apac.errors import InputError


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labeled training and test images, with the pixel values of the source.

    >>> import torch, apac
    >>> images, labels = torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1])
    >>> apac.Dataset("two", images, labels, images, labels, ("a", "b")).image_shape
    (1, 8, 8)
    """

    name: str
    train_images: Tensor  # (N, C, H, W) uint8
    train_labels: Tensor  # (N,) int64
    test_images: Tensor  # (N', C, H, W) uint8
    test_labels: Tensor  # (N',) int64
    classes: tuple[str, ...]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        channels, height, width = self.train_images.shape[1:]
        return channels, height, width


def check_pixels(images: Tensor) -> None:
    """Raise InputError unless images are uint8 pixels of shape (N, C, H, W)."""
    if not isinstance(images, Tensor) or images.ndim != 4 or images.dtype != torch.uint8:
        got = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise InputError(f"images must be a uint8 tensor of shape (N, C, H, W), got {got}.")
