"""Training samples a second, with deformation and without."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from apac import models
from apac.bench import peers
from apac.bench.race import Entry, race
from apac.deform.compose import Compose
from apac.progress import Progress
from apac.training import loop
from apac.training.config import TrainConfig

STEPS = {"mnist-cnn": 60, "cifar10-cnn": 20, "mnist-mlp": 20, "cifar10-mlp": 4}  # about half a second
WITH, WITHOUT = "apac, with deformation", "without deformation"


def measure(rounds: int, progress: Progress) -> list[Entry]:
    return [entry for name in models.BUILDERS for entry in _measure(name, rounds, progress)]


def _measure(name: str, rounds: int, progress: Progress) -> list[Entry]:
    preset, _, kind = name.partition("-")
    config = TrainConfig(data=preset, model=kind, epochs=1)
    plain = TrainConfig(data=preset, model=kind, epochs=1, deformation=Compose())
    count = STEPS[name] * config.batch
    images, labels = torch.rand(count, *peers.SHAPES[preset]), torch.randint(10, (count,))

    def ours(config: TrainConfig, ahead: bool | None = None) -> Callable[[], float]:
        state = loop.begin(config)

        def work() -> float:
            state.step = 0
            loop.advance(state, config, images, labels, (images[:0], labels[:0]), ahead=ahead)
            return count

        return work

    contestants = {WITH: ours(config), WITHOUT: ours(plain), "with deformation, a batch ahead": ours(config, True)}
    if peers.installed("kornia"):
        contestants["kornia, plain loop"] = _kornia(name, config, images, labels)
    group = f"training samples a second, {name}"
    speed = race(group, contestants, rounds, progress)
    return [Entry(group, who, value, "samples/s", WITH, speed[WITH] / value) for who, value in speed.items()]


def _kornia(name: str, config: TrainConfig, images: torch.Tensor, labels: torch.Tensor) -> Callable[[], float]:
    """The loop as one writes it."""
    network, chain = peers.plain_network(name), peers.kornia(name.partition("-")[0])
    assert config.rate is not None and config.l2 is not None
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=config.momentum, weight_decay=config.l2)

    def work() -> float:
        for _ in range(STEPS[name]):
            index = torch.randint(len(images), (config.batch,))
            loss = functional.cross_entropy(network(chain(images[index])), labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
        return len(images)

    return work
