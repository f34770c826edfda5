"""A small network that trains in milliseconds, for the tests of the training loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import apac
from apac import models
from apac.deform.base import Deformation
from apac.randomness import generator
from apac.training.config import TrainConfig
from apac.training.loop import TrainingState, init_state, run_epochs

CONFIG = TrainConfig(epochs=2, batch_size=20, learning_rate=0.03, weight_decay=0.01, seed=4).resolve(None, None)
MNIST = apac.presets.mnist()


def fresh(config: TrainConfig, network: str | nn.Module = "mnist-cnn") -> TrainingState:
    """Return the state before the first step."""
    tied = config.tied > 0
    if isinstance(network, str):
        random = generator(config.seed, "initial weights", 0)
        network = models.build(network, generator=random, tied=tied)
    return init_state(network, config, tied=tied)


def train(
    config: TrainConfig,
    part: tuple[Tensor, Tensor],
    deformation: Deformation = MNIST,
    *,
    network: str | nn.Module = "mnist-cnn",
    held_out: tuple[Tensor, Tensor] | None = None,
    **options: Any,
) -> TrainingState:
    state = fresh(config, network)
    run_epochs(state, config, deformation, *part, held_out or (part[0][:0], part[1][:0]), **options)
    return state


def weights_of(network: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in network.parameters()])


def noisy_network() -> nn.Sequential:
    """Return a network with batch normalization and dropout, with fixed initial weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 5, stride=3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Flatten(),
            nn.Linear(256, 10),
        )
