"""Networks that the tests build by import path."""

from __future__ import annotations

from torch import nn
from torch.nn import Flatten


def linear(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    channels, height, width = image_shape
    return nn.Sequential(Flatten(), nn.Linear(channels * height * width, classes))


def nothing(image_shape: tuple[int, int, int], classes: int) -> None:
    return None


def failing(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    raise ZeroDivisionError("oops")


def too_many(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    return linear(image_shape, classes + 1)


def convolutional(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return a network for images of at least 9 × 9."""
    return nn.Sequential(nn.Conv2d(image_shape[0], classes, 9), nn.AdaptiveAvgPool2d(1), nn.Flatten())
