"""Training of the last layer alone, with the rest of the network fixed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from apac.errors import InputError
from apac.models.weights import last_layer


@contextmanager
def frozen(network: nn.Module) -> Iterator[None]:
    """Fix all parameters but those of the last linear layer. On exit they can be trained as before.

    The caller runs the network in evaluation mode, so that the statistics of batch normalization are fixed too.
    """
    name = last_layer(network)
    if name is None:
        raise InputError(
            f"freeze=True trains the last linear layer, and the network, a {type(network).__name__}, has none; omit it."
        )
    required = {parameter: parameter.requires_grad for parameter in network.parameters()}
    own = set(network.get_submodule(name).parameters())
    try:
        for parameter in required:
            parameter.requires_grad_(parameter in own)
        yield
    finally:
        for parameter, before in required.items():
            parameter.requires_grad_(before)
