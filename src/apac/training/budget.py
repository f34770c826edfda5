"""How many epochs a time allows: measured, not guessed."""

from __future__ import annotations

import math
import time
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
    epoch = steps * _seconds_a_step(config, images)
    if seconds < epoch:
        raise InputError(
            f"one epoch of {config.network} takes {epoch / 60:.1f} minutes on this machine, and this training may take "
            f"only {seconds / 60:.1f}; give more hours."
        )
    return int(seconds / epoch)


def _seconds_a_step(config: TrainConfig, images: Tensor) -> float:
    # An epoch of one step, again and again, at a rate that changes nothing.
    one = replace(config, epochs=1, rate=1e-9)
    some = images[: config.batch].float() / 255
    labels = torch.zeros(len(some), dtype=torch.int64)
    state = loop.begin(one)

    def step() -> None:
        state.step = 0
        loop.advance(state, one, some, labels, (some[:0], labels[:0]))

    step()  # the first makes ready
    count, began = 0, time.monotonic()
    while time.monotonic() - began < MEASURED:
        step()
        count += 1
    return (time.monotonic() - began) / count
