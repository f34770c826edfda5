"""On-line deformation training: the one visible loop (paper, section 2 and Training details)."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from apac import models
from apac.deform.base import Deformation
from apac.deform.per_class import PerClass
from apac.errors import InputError
from apac.inference.memory import keep_freed_blocks
from apac.models.tied import untied
from apac.progress import Progress, no_progress
from apac.randomness import generator
from apac.training.batches import batches
from apac.training.config import TrainConfig
from apac.training.muon import Muon

DECAY = 0.9993  # of the rate, an epoch (paper)


class Training(Protocol):
    """What the loop asks of a configuration; see `TrainConfig` for what each means."""

    @property
    def deformation(self) -> Deformation | None: ...
    @property
    def epochs(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def rate(self) -> float | None: ...
    @property
    def schedule(self) -> str: ...
    @property
    def warmup(self) -> float: ...
    @property
    def optimizer(self) -> str: ...
    @property
    def momentum(self) -> float: ...
    @property
    def l2(self) -> float | None: ...
    @property
    def tied(self) -> float: ...
    @property
    def average(self) -> float: ...
    @property
    def seed(self) -> int: ...


@dataclass(frozen=True)
class Epoch:
    """What the history keeps of an epoch."""

    epoch: int  # counted from 1
    rate: float  # at its end
    loss: float  # mean over its virtual samples
    validation_error: float | None  # plain, on held-out images; None without any
    seconds: float  # since the training began, pauses not counted

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class State:
    """Everything that changes while training; a checkpoint is a State on disk."""

    network: nn.Module
    averaged: nn.Module | None  # the running mean of the weights
    optimizer: torch.optim.Optimizer
    tied: bool = False  # the network is an MLP whose weights are still tied
    step: int = 0
    loss_sum: float = 0.0  # over the steps of the epoch under way
    seconds: float = 0.0
    history: list[Epoch] = field(default_factory=list)

    @property
    def result(self) -> nn.Module:
        """The network that the training is for."""
        return self.averaged or self.network


def begin(config: TrainConfig, *, channels: int | None = None, classes: int = 10) -> State:
    """The state before the first step, for the paper's channels and classes or others."""
    random, tied = generator(config.seed, "initial weights", 0), config.tied > 0
    network = models.build(config.network, generator=random, channels=channels, classes=classes, tied=tied)
    return replace(start(network, config), tied=tied)


def start(network: nn.Module, config: Training) -> State:
    """The state before the first step of a network of one's own."""
    return State(network, copy.deepcopy(network) if config.average else None, _optimizer(network, config))


def tied_epochs(config: Training) -> int:
    """How many epochs, the first, an MLP's weights are tied."""
    return int(config.tied * config.epochs)


def untie(state: State, config: Training, shape: Sequence[int]) -> None:
    """Go on with the MLP that the tied network of images of this shape is; momentum begins anew."""
    assert isinstance(state.network, nn.Sequential) and isinstance(state.averaged, nn.Sequential | None)
    network = untied(state.network, shape)
    averaged = None if state.averaged is None else untied(state.averaged, shape)
    state.network, state.averaged, state.tied = network, averaged, False
    state.optimizer = _optimizer(network, config)


def _optimizer(network: nn.Module, config: Training) -> torch.optim.Optimizer:
    weights = [p for p in network.parameters() if p.ndim > 1]
    biases = [p for p in network.parameters() if p.ndim <= 1]
    assert config.rate is not None
    groups: list[dict[str, Any]]
    if config.optimizer == "muon":
        decay = {"weight_decay": config.l2}
        hidden, last = weights[:-1], weights[-1:]
        groups = [{"params": hidden, "orthogonal": True, **decay}, {"params": last, **decay}, {"params": biases}]
        return Muon(groups, lr=config.rate, momentum=config.momentum)
    groups = [{"params": weights, "weight_decay": config.l2}, {"params": biases}]
    return torch.optim.SGD(groups, lr=config.rate, momentum=config.momentum, fused=True)


def advance(
    state: State,
    config: Training,
    images: Tensor,
    labels: Tensor,
    held_out: tuple[Tensor, Tensor],
    *,
    after_step: Callable[[State], None] = lambda state: None,
    progress: Progress = no_progress,
    ahead: bool | None = None,
) -> None:
    """Train from wherever the state is to the last epoch. Images (N, C, H, W) are normalized, labels (N,) int64.

    `after_step` is called when a step is complete; it may save the state, or raise to stop. `ahead` makes the virtual
    samples of a step during the step before, see `batches`; the training is the same.
    """
    keep_freed_blocks()
    # An epoch is as many steps as process N virtual samples.
    steps = math.ceil(len(images) / config.batch)
    total = steps * config.epochs
    began = time.monotonic() - state.seconds
    make = partial(_virtual_samples, config, images, labels)
    for virtual, targets in batches(make, state.step, total, ahead=ahead):
        if state.tied and state.step >= steps * tied_epochs(config):
            untie(state, config, images.shape[1:])
        rate = rate_at(config, state.step, steps)
        for group in state.optimizer.param_groups:
            group["lr"] = rate

        loss = functional.cross_entropy(state.network(virtual), targets)
        state.optimizer.zero_grad()
        loss.backward()
        state.optimizer.step()
        state.step += 1
        if state.averaged is not None:
            _follow(state.averaged, state.network, config.average, state.step)

        state.loss_sum += loss.item()
        state.seconds = time.monotonic() - began
        if not math.isfinite(state.loss_sum):
            raise InputError(
                f"training diverged in step {state.step} (the loss is not finite); "
                f"begin again with a rate below {config.rate:g}."
            )
        ended = state.step % steps == 0
        if ended:
            error = plain_error(state.result, *held_out) if len(held_out[0]) else None
            state.seconds = time.monotonic() - began
            state.history.append(Epoch(state.step // steps, rate, state.loss_sum / steps, error, state.seconds))
        progress("training", state.step * config.batch, total * config.batch, _note(state, config, rate, steps))
        if ended:
            state.loss_sum = 0.0
        after_step(state)


def _virtual_samples(config: Training, images: Tensor, labels: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """The virtual samples of a step and their labels: indices with replacement, and a fresh Θ for each, used once."""
    random = generator(config.seed, "training step", step)
    index = torch.randint(len(images), (config.batch,), generator=random)
    originals, targets = images[index], labels[index]
    assert config.deformation is not None
    return deform(config.deformation, originals, targets, random), targets


def rate_at(config: Training, step: int, steps: int) -> float:
    """The learning rate of a step, with so many steps an epoch."""
    assert config.rate is not None
    total = steps * config.epochs
    warm = config.warmup * total
    if step < warm:
        return config.rate * (step + 1) / (warm + 1)
    if config.schedule == "paper":
        return config.rate * DECAY ** (int(step - warm) // steps)
    return config.rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / (total - warm)))


def deform(deformation: Deformation, originals: Tensor, labels: Tensor, random: torch.Generator) -> Tensor:
    """One virtual sample of each original; class-distinctive deformation goes by the labels."""
    _, channels, height, width = originals.shape
    n, shape = len(originals), (channels, height, width)
    if isinstance(deformation, PerClass):
        theta: Any = deformation.sample(n, shape, generator=random, labels=labels)
    else:
        theta = deformation.sample(n, shape, generator=random)
    return deformation.apply(originals, theta).contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def plain_error(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The share of images that one pass of the undeformed image gets wrong."""
    guesses = torch.cat([network(part).argmax(dim=1) for part in images.split(500)])
    return int((guesses != labels).sum()) / len(labels)


@torch.no_grad()
def _follow(averaged: nn.Module, network: nn.Module, decay: float, step: int) -> None:
    # A short memory at first, or the initial weights would weigh on the mean for long.
    weight = 1 - min(decay, (1 + step) / (10 + step))
    torch._foreach_lerp_(list(averaged.parameters()), list(network.parameters()), weight)


def _note(state: State, config: Training, rate: float, steps: int) -> str:
    """The epoch under way with its loss so far, and the last validation error."""
    epoch, done = (state.step - 1) // steps + 1, (state.step - 1) % steps + 1
    error = state.history[-1].validation_error if state.history else None
    return f"epoch {epoch}/{config.epochs}, rate {rate:.2g}, loss {state.loss_sum / done:.4f}" + (
        "" if error is None else f", validation error {error:.2%}"
    )
