"""A network of today for images of 32 × 32, in the manner of airbench.

After Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU" (2024): a fixed convolution whitens patches of 2 × 2
pixels; three groups of two convolutions follow, with batch normalization and GELU, each of which halves the map; the
largest value of each channel goes to the last layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTHS = (64, 256, 256)
PATCH = 2  # side in pixels
NOISE = 5e-4  # added to the variances: directions with less than that are noise, and are not amplified


class PatchWhitening(nn.Conv2d):
    """A convolution whose fixed filters make the elements of a patch uncorrelated. The second half are their negatives.

    Before `fit` the filters are random.
    """

    fitted_images = 5000  # enough to fit the filters: 4.8 million patches

    def __init__(self, channels: int) -> None:
        super().__init__(channels, 2 * channels * PATCH**2, PATCH)
        self.weight.requires_grad_(False)

    @torch.no_grad()
    def fit(self, images: Tensor) -> None:
        """Set the filters to the principal components of the patches of the images, divided by their deviations."""
        patches = functional.unfold(images, PATCH).transpose(1, 2).flatten(0, 1)  # (n, C · 4)
        covariance = torch.cov(patches.T.double())
        variances, directions = torch.linalg.eigh(covariance)
        filters = (directions / (variances + NOISE).sqrt()).T.flip(0)  # the largest variance first
        self.weight.copy_(torch.cat((filters, -filters)).unflatten(1, (-1, PATCH, PATCH)))


def cifar10_modern(channels: int = 3, classes: int = 10) -> nn.Sequential:
    """Build the network for images (C, 32, 32)."""
    whitening = PatchWhitening(channels)
    layers: list[nn.Module] = [whitening, nn.GELU()]
    inputs = whitening.out_channels
    for width in WIDTHS:
        layers += [*_convolution(inputs, width, nn.MaxPool2d(2)), *_convolution(width, width)]
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def _convolution(inputs: int, outputs: int, *pooling: nn.Module) -> list[nn.Module]:
    # The batch normalization makes a bias superfluous.
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), *pooling, nn.BatchNorm2d(outputs), nn.GELU()]
