"""The number of epochs that fit into a time budget, measured on this machine."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from apac import models
from apac.deform.base import Deformation
from apac.errors import InputError
from apac.randomness import generator
from apac.training.config import TrainConfig
from apac.training.loop import TrainingState, init_state, run_epochs, tied_epochs

MEASURED_SECONDS = 5.0
PAPER_EPOCHS = 15_000


def epochs_within(
    configs: Callable[[int], Sequence[TrainConfig]],
    network: str,
    deformation: Deformation,
    images: Tensor,
    seconds: float,
) -> int:
    """Return the largest n, up to the paper's 15,000, for which the runs with configs(n) together fit into `seconds`.

    All of them train the same network on the same images (N, C, H, W) uint8, and differ only in their epochs. The step
    time is measured with the first configuration.
    """
    config = configs(1)[0]
    steps = math.ceil(round((1 - config.validation_fraction) * len(images)) / config.batch_size)
    free = steps * _seconds_per_step(replace(config, tied=0.0), network, deformation, images)
    tied = steps * _seconds_per_step(config, network, deformation, images) if config.tied else free

    def duration(epochs: int) -> float:
        counts = [(tied_epochs(config), config.epochs) for config in configs(epochs)]
        return sum(first * tied + (total - first) * free for first, total in counts)

    epochs = bisect_right(range(1, PAPER_EPOCHS + 1), seconds, key=duration)
    if not epochs:
        raise InputError(
            f"one epoch of {network} takes {free:.2g} s on this machine, and the two training runs may take only "
            f"{seconds:.2g} s; allow more hours."
        )
    return epochs


def _seconds_per_step(config: TrainConfig, network: str, deformation: Deformation, images: Tensor) -> float:
    # Epochs of a single step with a negligible learning rate, until the time is up.
    endless = replace(config, epochs=1_000_000, learning_rate=1e-9, validation_fraction=0.0)
    random, tied = generator(config.seed, "initial weights", 0), config.tied > 0
    state = init_state(models.build(network, generator=random, tied=tied), endless, tied=tied)
    batch = images[: config.batch_size].float() / 255
    labels = torch.zeros(len(batch), dtype=torch.int64)
    times: list[float] = []  # at the end of each step; the first is a warm-up

    def check_time(state: TrainingState) -> None:
        times.append(time.monotonic())
        if len(times) > 1 and times[-1] - times[0] >= MEASURED_SECONDS:
            raise _TimeIsUp

    with suppress(_TimeIsUp):
        run_epochs(state, endless, deformation, batch, labels, (batch[:0], labels[:0]), after_step=check_time)
    return (times[-1] - times[0]) / (len(times) - 1)


class _TimeIsUp(Exception):
    """Enough steps have been measured."""
