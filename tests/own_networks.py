"""Networks that the tests build by import path."""

from __future__ import annotations

from torch import nn


def linear(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    channels, height, width = image_shape
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, classes))


def nothing(image_shape: tuple[int, int, int], classes: int) -> None:
    return None


def failing(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    raise ZeroDivisionError("oops")
