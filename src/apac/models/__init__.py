"""The networks by name: the paper's four, and two modern ones, one for images of any size. They return logits."""

from __future__ import annotations

import torch
from torch import nn

from apac.errors import InputError
from apac.models.cifar10_cnn import cifar10_cnn
from apac.models.cifar10_modern import DiracConv2d, FastBias, PatchWhitening, cifar10_modern
from apac.models.mlp import cifar10_mlp, mnist_mlp
from apac.models.mnist_cnn import mnist_cnn
from apac.models.resnet import Block, resnet
from apac.models.tied import cifar10_tied, mnist_tied
from apac.validation import quoted

# the paper's networks, for images of one size
BUILDERS = {"mnist-cnn": mnist_cnn, "mnist-mlp": mnist_mlp, "cifar10-cnn": cifar10_cnn, "cifar10-mlp": cifar10_mlp}
TIED = {"mnist-mlp": mnist_tied, "cifar10-mlp": cifar10_tied}
SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}  # by the first part of the name
MODERN = "cifar10-modern"
RESNET = "resnet"
NAMES = (*BUILDERS, MODERN, RESNET)


def fixed_size(name: str | None) -> int | None:
    """Return the height and width of the images that the network takes, or None if it takes any."""
    shape = SHAPES.get((name or "").partition("-")[0])
    return None if shape is None else shape[1]


def build(
    name: str,
    *,
    generator: torch.Generator,
    image_shape: tuple[int, int, int] | None = None,
    classes: int = 10,
    tied: bool = False,
) -> nn.Sequential:
    """Build a network with He initialization drawn from the generator, and zero biases. Some start as identities.

    The shape (C, H, W) of an image and the number of classes default to the paper's. `tied` builds an MLP with
    convolutional weight sharing.
    """
    # On the meta device, torch's own initialization neither runs nor changes the global generator.
    network = without_memory(name, image_shape, classes, tied=tied)
    # Not by to_empty, which imports sympy for tensors of the meta device: a second of every command.
    empty = {key: torch.empty(tensor.shape, dtype=tensor.dtype) for key, tensor in network.state_dict().items()}
    network.load_state_dict(empty, assign=True)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.BatchNorm2d | FastBias):
            layer.reset_parameters()  # draws no random numbers
    for layer in network.modules():
        if isinstance(layer, Block):
            nn.init.zeros_(layer.last_scale)
        elif isinstance(layer, DiracConv2d):
            layer.reset_dirac()
    # Convolutions are about twice as fast in the channels-last memory format.
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def without_memory(
    name: str, image_shape: tuple[int, int, int] | None, classes: int, *, tied: bool = False
) -> nn.Sequential:
    """Build a network on the meta device: its tensors have shapes, and no memory."""
    if name not in (TIED if tied else NAMES):
        raise InputError(f"there is no network {quoted(name)}; choose one of {', '.join(TIED if tied else NAMES)}.")
    with torch.device("meta"):
        return _layers(name, image_shape, classes, tied)


def _layers(name: str, image_shape: tuple[int, int, int] | None, classes: int, tied: bool) -> nn.Sequential:
    if name == RESNET:
        return resnet(image_shape or SHAPES["cifar10"], classes)
    _, *sides = own = SHAPES[name.partition("-")[0]]
    image_shape = image_shape or own
    if list(image_shape[1:]) != sides:
        expected, got = (" × ".join(map(str, size)) for size in (sides, image_shape[1:]))
        raise InputError(
            f"the network {name} takes images of {expected} pixels, got {got}; resize them, those of a folder "
            f"with size={sides[0]}, or use the network {RESNET}, which takes any size."
        )
    builder = cifar10_modern if name == MODERN else (TIED if tied else BUILDERS)[name]
    return builder(image_shape[0], classes)


def fitted_layers(network: nn.Module) -> list[PatchWhitening]:
    """Return the layers that are not trained but fitted to network inputs before the training."""
    return [layer for layer in network.modules() if isinstance(layer, PatchWhitening)]
