"""How many epochs a time allows: measured, not guessed."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from apac.errors import InputError
from apac.training import loop
from apac.training.config import TrainConfig

MEASURED = 5.0  # seconds


def epochs_within(config: TrainConfig, images: Tensor, seconds: float) -> int:
    """The epochs that this training of images (N, C, H, W) uint8 can make in so many seconds on this machine."""
    steps = math.ceil(round((1 - config.validation) * len(images)) / config.batch)
    step = _seconds_a_step(replace(config, tied=0.0), images)
    if config.tied:
        step = config.tied * _seconds_a_step(config, images) + (1 - config.tied) * step
    epoch = steps * step
    if seconds < epoch:
        raise InputError(
            f"one epoch of {config.network} takes {epoch:.2g} s on this machine, and this training may take only "
            f"{seconds:.2g} s; give more hours."
        )
    return int(seconds / epoch)


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
