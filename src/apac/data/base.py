"""What a data set is to the rest of the package."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from apac.errors import InputError


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labeled images, as the pixels that the source gives: no scaling, no whitening."""

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
    """What every normalization asks of its input."""
    if not isinstance(images, Tensor) or images.ndim != 4 or images.dtype != torch.uint8:
        got = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise InputError(f"normalization takes pixels as a torch tensor of uint8 (N, C, H, W), got {got}.")
