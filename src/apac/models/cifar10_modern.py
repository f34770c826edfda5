"""A modern network for images of 32 × 32, modeled on airbench.

After Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU" (2024): a fixed convolution whitens patches of 2 × 2
pixels; three groups of two convolutions follow, with batch normalization and GELU, each of which halves the map; the
largest value of each channel goes to the last layer. At first a convolution passes its inputs on. The biases are
learned faster than the weights, and the last layer more slowly.

It differs from airbench in the training: images are mirrored at random, not in alternate epochs, and drawn with
replacement unless `replacement=False`; the learning rate falls along a cosine, not linearly; the biases have no weight
decay, and that of the whitening layer is learned to the end; Muon takes 5 iterations, not 3; the running means of the
normalization follow more slowly.
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
        super().__init__(channels, 2 * channels * PATCH**2, PATCH, bias=False)
        self.weight.requires_grad_(False)

    @torch.no_grad()
    def fit(self, images: Tensor) -> None:
        """Set the filters to the principal components of the patches of the images, divided by their deviations."""
        patches = functional.unfold(images, PATCH).transpose(1, 2).flatten(0, 1)  # (n, C · 4)
        covariance = torch.cov(patches.T.double())
        variances, directions = torch.linalg.eigh(covariance)
        filters = (directions / (variances + NOISE).sqrt()).T.flip(0)  # the largest variance first
        self.weight.copy_(torch.cat((filters, -filters)).unflatten(1, (-1, PATCH, PATCH)))


class DiracConv2d(nn.Conv2d):
    """A 3 × 3 convolution with Dirac initialization: its first outputs start as its inputs, the others are random."""

    scale_free = True  # the batch normalization that follows cancels the scale of the weights

    def __init__(self, inputs: int, outputs: int) -> None:
        # The batch normalization that follows makes a bias superfluous.
        super().__init__(inputs, outputs, 3, padding=1, bias=False)

    @torch.no_grad()
    def reset_dirac(self) -> None:
        """Set the first filters so that they return the inputs."""
        nn.init.dirac_(self.weight[: self.in_channels])


class FastBias(nn.Module):
    """Adds a bias to each channel, which gradient descent changes by SCALE² times as much as an ordinary one."""

    SCALE = 13.0

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.SCALE * self.bias[:, None, None]).to(x.dtype)

    def reset_parameters(self) -> None:
        """Set the bias to zero."""
        nn.init.zeros_(self.bias)


class SlowLinear(nn.Linear):
    """The last layer. Gradient descent changes its outputs by SCALE², 1/28, of what it changes an ordinary one's."""

    SCALE = 3 / 16

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.SCALE * x)


def cifar10_modern(channels: int = 3, classes: int = 10) -> nn.Sequential:
    """Build the network for images (C, 32, 32)."""
    whitening = PatchWhitening(channels)
    layers: list[nn.Module] = [whitening, FastBias(whitening.out_channels), nn.GELU()]
    inputs = whitening.out_channels
    for width in WIDTHS:
        layers += [*_convolution(inputs, width, nn.MaxPool2d(2)), *_convolution(width, width)]
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), SlowLinear(inputs, classes))


def _convolution(inputs: int, outputs: int, *pooling: nn.Module) -> list[nn.Module]:
    normalization = nn.BatchNorm2d(outputs, affine=False)
    return [DiracConv2d(inputs, outputs), *pooling, normalization, FastBias(outputs), nn.GELU()]
