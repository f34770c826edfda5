"""A residual network for images of any size from 16 pixels, with batch normalization and global pooling.

Strided convolutions, the stem, reduce an image to a map of 14 to 28 pixels a side. Four stages of one residual block
follow, each with twice the channels and half the side of the one before. The cost of an image is therefore bounded:
384 × 384 pixels take five times the multiplications of 32 × 32.

As in ResNet-D (He et al., "Bag of Tricks for Image Classification with Convolutional Neural Networks", 2019), the stem
has 3 × 3 convolutions only, and a shortcut averages before it reduces; every block starts as the identity.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional

from apac.errors import InputError

MIN_SIDE = 16
MAX_FIRST_MAP = 28  # side of the largest map that a stage works on
WIDTHS = (32, 64, 128, 256)


class Block(nn.Module):
    """Two convolutions and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *convolution(inputs, outputs, stride), nn.ReLU(inplace=True), *convolution(outputs, outputs)
        )
        shortcut: list[nn.Module] = []
        if stride > 1:
            # of maps with an odd side, the last row and column are averaged by themselves
            shortcut.append(nn.AvgPool2d(stride, ceil_mode=True, count_include_pad=False))
        if inputs != outputs:
            shortcut += [nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.shortcut(x) + self.residual(x), inplace=True)

    @property
    def last_scale(self) -> nn.Parameter:
        """The weight of the last batch normalization. The block is the identity where it is 0."""
        return cast(nn.BatchNorm2d, self.residual[-1]).weight


def convolution(inputs: int, outputs: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    # The batch normalization makes a bias superfluous.
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs)


def resnet(image_shape: tuple[int, int, int] = (3, 32, 32), classes: int = 10) -> nn.Sequential:
    """Build the network for images of shape (C, H, W)."""
    channels, *sides = image_shape
    if min(sides) < MIN_SIDE:
        raise InputError(
            f"the network resnet takes images of at least {MIN_SIDE} × {MIN_SIDE} pixels, got "
            f"{' × '.join(map(str, sides))}; use larger images, of a folder with size={MIN_SIDE} or more."
        )
    layers: list[nn.Module] = []
    strides = stem_strides(max(sides))
    for number, stride in enumerate(strides, start=1):
        width = max(WIDTHS[0] >> (len(strides) - number), WIDTHS[0] // 2)
        layers += [*convolution(channels, width, stride), nn.ReLU(inplace=True)]
        channels = width
    for number, width in enumerate(WIDTHS):
        layers.append(Block(channels, width, stride=2 if number else 1))
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def stem_strides(side: int) -> list[int]:
    """Return the strides of the convolutions of the stem: as many halvings as the largest map requires.

    A small image first passes a convolution of stride 1, because every pixel counts there.
    """
    halvings = 0
    while -(-side // 2**halvings) > MAX_FIRST_MAP:
        halvings += 1
    return [2] * halvings if halvings > 1 else [1, *[2] * halvings]
