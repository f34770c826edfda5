"""MLPs with tied weights: the units of a layer share weights as in a convolution.

A tied network has the units of the MLP and a fiftieth to a hundredth of its free weights, so it trains in a fraction of
the time.
`untied` converts it to the equivalent MLP, in which further training updates all weights independently.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import nn


def mnist_tied(channels: int = 1, classes: int = 10) -> nn.Sequential:
    """Build the MNIST MLP with tied weights: 2500 units are 25 × 10 × 10, and 2000 are 80 × 5 × 5."""
    first = nn.Conv2d(channels, 25, 7, stride=3, padding=3)
    second = nn.Conv2d(25, 80, 5, stride=2, padding=2)
    return _three_layers(first, second, nn.Linear(80 * 5 * 5, classes))


def cifar10_tied(channels: int = 3, classes: int = 10) -> nn.Sequential:
    """Build the CIFAR-10 MLP with tied weights: 4096 units are 64 × 8 × 8, and 3072 are 192 × 4 × 4."""
    first = nn.Conv2d(channels, 64, 8, stride=4, padding=2)
    second = nn.Conv2d(64, 192, 6, stride=2, padding=2)
    return _three_layers(first, second, nn.Linear(192 * 4 * 4, classes))


def _three_layers(first: nn.Conv2d, second: nn.Conv2d, last: nn.Linear) -> nn.Sequential:
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), last)


@torch.no_grad()
def untied(network: nn.Sequential, shape: Sequence[int]) -> nn.Sequential:
    """Convert a tied network for images of this shape (C, H, W) to the MLP that computes the same function."""
    layers: list[nn.Module] = [nn.Flatten()]
    for layer in network:
        if isinstance(layer, nn.Conv2d):
            # The output for zeros is the bias; the outputs for unit vectors minus the bias are the weights.
            bias = layer(torch.zeros(1, *shape))
            weights = layer(torch.eye(prod(shape)).view(-1, *shape)) - bias
            layers.append(_linear(weights.flatten(1).T, bias.flatten()))
            shape = bias.shape[1:]
        elif isinstance(layer, nn.Linear):
            layers.append(_linear(layer.weight, layer.bias))
        elif isinstance(layer, nn.ReLU):
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def _linear(weight: torch.Tensor, bias: torch.Tensor) -> nn.Linear:
    outputs, inputs = weight.shape
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)  # uses no random numbers
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)
    return layer
