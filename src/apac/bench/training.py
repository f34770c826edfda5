"""Training throughput, with deformation and without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch.nn import functional

from apac import models
from apac.bench import peers
from apac.bench.race import Entry, race
from apac.deform.base import Deformation
from apac.deform.compose import Compose
from apac.deform.cpu import torch_path
from apac.progress import Progress
from apac.randomness import generator
from apac.runs.presets import PRESETS
from apac.training.config import TrainConfig
from apac.training.loop import init_state, run_epochs
from apac.training.precision import has_bfloat16

STEPS = {"mnist-cnn": 60, "cifar10-cnn": 20, "mnist-mlp": 20, "cifar10-mlp": 4}  # about half a second
WITH, WITHOUT = "apac, with deformation", "without deformation"


def measure(rounds: int, progress: Progress) -> list[Entry]:
    return [entry for name in models.BUILDERS for entry in _measure(name, rounds, progress)]


def _measure(name: str, rounds: int, progress: Progress) -> list[Entry]:
    data = name.partition("-")[0]
    config = TrainConfig(epochs=1).resolve(name, data)
    count = STEPS[name] * config.batch_size
    images, labels = torch.rand(count, *peers.SHAPES[data]), torch.randint(10, (count,))
    preset = PRESETS[data]()

    def apac(
        deformation: Deformation, prefetch: bool | None = None, config: TrainConfig = config
    ) -> Callable[[], float]:
        network = models.build(name, generator=generator(config.seed, "initial weights", 0))
        state = init_state(network, config)

        def work() -> float:
            state.step = 0
            run_epochs(state, config, deformation, images, labels, (images[:0], labels[:0]), prefetch=prefetch)
            return count

        return work

    contestants = {
        WITH: apac(preset),
        WITHOUT: apac(Compose()),
        "without deformation, gradients by torch": _by_torch(apac(Compose())),
        "with deformation, prefetching": apac(preset, True),
    }
    if has_bfloat16():
        contestants["with deformation, bfloat16"] = apac(preset, config=replace(config, precision="bfloat16"))
    if peers.installed("kornia"):
        contestants["kornia, plain loop"] = _kornia(name, config, images, labels)
    group = f"training samples per second, {name}"
    speed = race(group, contestants, rounds, progress)
    return [
        Entry(group, contestant, value, "samples/s", WITH, speed[WITH] / value) for contestant, value in speed.items()
    ]


def _by_torch(work: Callable[[], float]) -> Callable[[], float]:
    """Return the same work without the kernels of `apac.training.pooled_convolution`."""

    def without_kernels() -> float:
        with torch_path():
            return work()

    return without_kernels


def _kornia(name: str, config: TrainConfig, images: torch.Tensor, labels: torch.Tensor) -> Callable[[], float]:
    """Return a contestant that runs a typical training loop."""
    network, chain = peers.plain_network(name), peers.kornia(name.partition("-")[0])
    assert config.weight_decay is not None
    decay = config.weight_decay
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=config.momentum, weight_decay=decay)

    def work() -> float:
        for _ in range(STEPS[name]):
            index = torch.randint(len(images), (config.batch_size,))
            loss = functional.cross_entropy(network(chain(images[index])), labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
        return len(images)

    return work
