"""Periodic checkpoints on disk, and stopping on request."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from apac.distributed.ranks.group import agreed
from apac.errors import InputError, Interrupted
from apac.runs.storage import read_tensors, write_tensors
from apac.runs.stored_network import check_finite
from apac.training import checkpoint
from apac.training.config import TrainConfig
from apac.training.loop import TrainingState

Stored = tuple[dict[str, Tensor], dict[str, str]]  # tensors and metadata

SECONDS_BETWEEN = 30.0  # a killed training loses at most this much work


class Checkpointer:
    """Save the state every 30 seconds and before stopping. Pass it to the training loop as `after_step`.

    Of several ranks, which have the same state, all restore it and the first one saves it.
    """

    def __init__(
        self, path: Path | None, config: TrainConfig, should_stop: Callable[[], bool] | None, *, saves: bool = True
    ) -> None:
        self.path, self.config, self.should_stop, self.saves = path, config, should_stop, saves
        self.saved = time.monotonic()

    def read(self, network: nn.Module) -> Stored | None:
        """Return the checkpoint of an earlier training of the network, if there is one."""
        if self.path is None or not self.path.exists():
            return None
        check = partial(checkpoint.check_shapes, network, self.config)
        try:
            stored = read_tensors(self.path, "start again with overwrite=True", check)
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from error
        check_finite(stored[0], self.path)
        return stored

    def restore(self, state: TrainingState, shape: Sequence[int], stored: Stored | None) -> None:
        """Continue from a checkpoint on images of shape (C, H, W), if there is one."""
        if stored is None:
            return
        try:
            checkpoint.restore(state, self.config, shape, *stored)
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from error

    def save(self, state: TrainingState) -> None:
        assert self.path is not None
        write_tensors(self.path, *checkpoint.to_tensors(state, self.config))
        self.saved = time.monotonic()

    def __call__(self, state: TrainingState) -> None:
        stop = self.should_stop is not None and self.should_stop()
        if self.saves and self.path is not None and (stop or time.monotonic() - self.saved >= SECONDS_BETWEEN):
            self.save(state)
        if stop:
            epoch = min(len(state.history) + 1, self.config.epochs)
            remedy = "without out= nothing is saved" if self.path is None else "continue with resume=True"
            raise agreed(Interrupted(f"stopped in epoch {epoch} of {self.config.epochs}; {remedy}."))
