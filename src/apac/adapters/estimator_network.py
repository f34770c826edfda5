"""The network of an estimator: the caller's own, or a multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from numbers import Integral

import numpy as np
from torch import nn

from apac.errors import InputError

Shape = tuple[int, int, int]
Builder = Callable[[Shape, int], nn.Module]  # from the shape of a sample (C, H, W) and the number of classes


def build_network(builder: Builder | None, hidden: tuple[int, ...], shape: Shape, classes: int) -> nn.Module:
    """Build the caller's network, or a perceptron with `hidden` layer sizes if there is none."""
    if builder is None:
        return _perceptron(hidden, shape, classes)
    if isinstance(builder, nn.Module) or not callable(builder):
        raise InputError(
            f"network must be a function that builds a module, such as lambda shape, classes: ..., got "
            f"{type(builder).__name__}."
        )
    network = builder(shape, classes)
    if not isinstance(network, nn.Module) or not any(True for _ in network.parameters()):
        raise InputError(f"network must return a torch module with parameters, got {type(network).__name__}.")
    return network


def _perceptron(hidden: tuple[int, ...], shape: Shape, classes: int) -> nn.Module:
    if not isinstance(hidden, tuple | list) or not all(isinstance(size, Integral) and size > 0 for size in hidden):
        raise InputError(f"hidden_layer_sizes must be positive integers, such as (64,), got {hidden!r}.")
    sizes = [int(np.prod(shape)), *map(int, hidden)]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    # Double precision: scikit-learn requires that a result does not depend on the batch to about 1e-7.
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes)).double()
