"""The four networks of the paper, by name. They return logits."""

from __future__ import annotations

import torch
from torch import nn

from apac.errors import InputError
from apac.models.cifar10_cnn import cifar10_cnn
from apac.models.mlp import cifar10_mlp, mnist_mlp
from apac.models.mnist_cnn import mnist_cnn
from apac.models.tied import cifar10_tied, mnist_tied

BUILDERS = {"mnist-cnn": mnist_cnn, "mnist-mlp": mnist_mlp, "cifar10-cnn": cifar10_cnn, "cifar10-mlp": cifar10_mlp}
TIED = {"mnist-mlp": mnist_tied, "cifar10-mlp": cifar10_tied}
SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}  # by the first part of the name


def fixed_size(name: str | None) -> int | None:
    """Return the height and width of the images that the network takes, or None if it takes any."""
    shape = SHAPES.get((name or "").partition("-")[0])
    return None if shape is None else shape[1]


def build(
    name: str, *, generator: torch.Generator, channels: int | None = None, classes: int = 10, tied: bool = False
) -> nn.Sequential:
    """Build a network with He initialization drawn from the generator, and zero biases.

    The numbers of channels and classes default to the paper's. `tied` builds an MLP with convolutional weight sharing.
    """
    builders = TIED if tied else BUILDERS
    if name not in builders:
        raise InputError(f"there is no network {name!r}; choose one of {', '.join(builders)}.")
    # Built on the meta device, so that torch's own initialization neither runs nor changes the global generator.
    with torch.device("meta"):
        sizes = {"classes": classes} if channels is None else {"channels": channels, "classes": classes}
        network = builders[name](**sizes)
    network.to_empty(device="cpu")
    for layer in network:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    # Convolutions are about twice as fast in the channels-last memory format.
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
