"""The network of an estimator, the caller's own or a multi-layer perceptron, and its training."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from numbers import Integral

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from apac.deform.base import Deformation
from apac.errors import InputError
from apac.training.config import TrainConfig
from apac.training.loop import TrainingState, init_state, run_epochs

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


def train_network(
    network: nn.Module,
    config: TrainConfig,
    deformation: Deformation,
    samples: Tensor,
    labels: Tensor,
    standardize: Callable[[Tensor], Tensor],
    weights: NDArray[np.float64] | None,
    *,
    verbose: bool,
) -> list[float]:
    """Train a network in place and return the mean loss of each epoch, which `verbose` also prints."""
    steps = math.ceil(len(samples) / config.batch_size)

    def report(state: TrainingState) -> None:
        if verbose and state.step % steps == 0:
            print(f"Epoch {state.history[-1].epoch}, loss = {state.history[-1].loss:.8f}")

    state = init_state(network, config)
    run_epochs(
        state,
        config,
        deformation,
        samples,
        labels,
        (samples[:0], labels[:0]),
        standardize=standardize,
        weights=None if weights is None else torch.from_numpy(weights),
        after_step=report,
        prefetch=False,
    )
    network.eval()
    return [epoch.loss for epoch in state.history]


def _perceptron(hidden: tuple[int, ...], shape: Shape, classes: int) -> nn.Module:
    if not isinstance(hidden, tuple | list) or not all(isinstance(size, Integral) and size > 0 for size in hidden):
        raise InputError(f"hidden_layer_sizes must be positive integers, such as (64,), got {hidden!r}.")
    sizes = [int(np.prod(shape)), *map(int, hidden)]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    # Double precision: scikit-learn requires that a result does not depend on the batch to about 1e-7.
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes)).double()
