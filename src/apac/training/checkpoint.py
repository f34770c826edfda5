"""A State on disk: kill a training at any moment, and what goes on equals what would have been."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from torch import Tensor, nn

from apac.errors import InputError
from apac.runs.storage import read_tensors, write_tensors
from apac.training.config import TrainConfig
from apac.training.loop import Epoch, State, untie

SECONDS_BETWEEN = 30.0  # at most so much work is lost when a training is killed


def save(path: Path, state: State, config: TrainConfig) -> None:
    tensors = {f"network.{name}": tensor for name, tensor in state.network.state_dict().items()}
    if state.averaged is not None:
        tensors |= {f"averaged.{name}": tensor for name, tensor in state.averaged.state_dict().items()}
    for name, parameter in state.network.named_parameters():
        velocity = state.optimizer.state.get(parameter, {}).get("momentum_buffer")
        if velocity is not None:
            tensors[f"velocity.{name}"] = velocity
    progress = {
        "config": config.to_json(),
        "tied": state.tied,
        "step": state.step,
        "loss_sum": state.loss_sum,
        "seconds": state.seconds,
        "history": [epoch.to_json() for epoch in state.history],
    }
    write_tensors(path, tensors, {"state": json.dumps(progress)})


def restore(path: Path, state: State, config: TrainConfig, shape: Sequence[int]) -> None:
    """Put a fresh state, for images of this shape, where the checkpoint was."""
    tensors, notes = read_tensors(path, "begin again with --overwrite")
    try:
        progress = json.loads(notes["state"])
        if TrainConfig.from_json(progress["config"]) != config:
            raise ValueError("another configuration")
        if state.tied and not progress["tied"]:
            untie(state, config, shape)
        _fill(state.network, "network.", tensors)
        if state.averaged is not None:
            _fill(state.averaged, "averaged.", tensors)
        for name, parameter in state.network.named_parameters():
            velocity = tensors.get(f"velocity.{name}")
            if velocity is not None:
                # laid out in memory as the parameter is, as torch's own buffer would be
                state.optimizer.state[parameter]["momentum_buffer"] = parameter.detach().clone().copy_(velocity)
        state.step, state.loss_sum, state.seconds = progress["step"], progress["loss_sum"], progress["seconds"]
        state.history = [Epoch(**epoch) for epoch in progress["history"]]
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{path} is not a checkpoint of this training; begin again with --overwrite.") from error


def _fill(network: nn.Module, prefix: str, tensors: dict[str, Tensor]) -> None:
    network.load_state_dict({name: tensors[prefix + name] for name in network.state_dict()})


class Checkpointer:
    """Saves now and then, and when asked to stop. `after_step` of the loop."""

    def __init__(self, path: Path, config: TrainConfig, stop: Stop) -> None:
        self.path, self.config, self.stop = path, config, stop
        self.saved = time.monotonic()

    def restore(self, state: State, shape: Sequence[int]) -> None:
        """Go on where an earlier training on images of this shape stopped, if one did."""
        if self.path.exists():
            restore(self.path, state, self.config, shape)

    def __call__(self, state: State) -> None:
        if self.stop.asked or time.monotonic() - self.saved >= SECONDS_BETWEEN:
            save(self.path, state, self.config)
            self.saved = time.monotonic()
        if self.stop.asked:
            raise Stopped


class Stopped(Exception):
    """The training was asked to stop, and its state is on disk."""


class Stop:
    """Whether someone asked to stop."""

    asked = False


@contextmanager
def stop_on_signal() -> Iterator[Stop]:
    """The first Ctrl-C or SIGTERM asks to stop after the step under way; a second Ctrl-C stops at once."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread may handle signals
        return

    def ask(number: int, frame: FrameType | None) -> None:
        stop.asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
