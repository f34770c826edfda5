"""How many epochs a time allows: measured, not guessed."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from apac.errors import InputError
from apac.training import loop
from apac.training.config import TrainConfig

MEASURED = 5.0  # seconds
PAPER_EPOCHS = 15_000


def epochs_within(trainings: Callable[[int], Sequence[TrainConfig]], images: Tensor, seconds: float) -> int:
    """The largest number of epochs, up to the paper's, for which `trainings` of it, of images (N, C, H, W) uint8, take
    together no more than so many seconds on this machine. They differ in deformation and epochs; the first is
    measured."""
    config = trainings(1)[0]
    steps = math.ceil(round((1 - config.validation) * len(images)) / config.batch)
    free = steps * _seconds_a_step(replace(config, tied=0.0), images)
    tied = steps * _seconds_a_step(config, images) if config.tied else free

    def takes(epochs: int) -> float:
        first = [(loop.tied_epochs(each), each.epochs) for each in trainings(epochs)]
        return sum(count * tied + (total - count) * free for count, total in first)

    found = bisect_right(range(1, PAPER_EPOCHS + 1), seconds, key=takes)
    if not found:
        raise InputError(
            f"one epoch of {config.network} takes {free:.2g} s on this machine, and the two trainings may take only "
            f"{seconds:.2g} s; give more hours."
        )
    return found


def _seconds_a_step(config: TrainConfig, images: Tensor) -> float:
    # Epochs of one step, at a rate that changes nothing, until time is up.
    endless = replace(config, epochs=1_000_000, rate=1e-9)
    some = images[: config.batch].float() / 255
    labels = torch.zeros(len(some), dtype=torch.int64)
    times: list[float] = []  # at the end of each step; the first makes ready

    def look(state: loop.State) -> None:
        times.append(time.monotonic())
        if len(times) > 1 and times[-1] - times[0] >= MEASURED:
            raise _Enough

    with suppress(_Enough):
        loop.advance(loop.begin(endless), endless, some, labels, (some[:0], labels[:0]), after_step=look)
    return (times[-1] - times[0]) / (len(times) - 1)


class _Enough(Exception):
    """The time is up."""
