"""A training can be killed at any moment and goes on as if nothing had happened."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import apac
from apac.training import checkpoint, loop
from apac.training.config import TrainConfig

CONFIG = TrainConfig("mnist-5k", "cnn", epochs=3, batch=20, average=0.9, seed=2)
SHAPE = (1, 28, 28)


class Killed(Exception):
    pass


@pytest.mark.parametrize(
    "change",
    [{"model": "cnn"}, {"model": "mlp"}, {"optimizer": "muon", "warmup": 0.3}, {"model": "mlp", "tied": 0.4}],
    ids=str,
)
@pytest.mark.parametrize("step", [1, 5, 7, 14])
def test_a_training_resumed_from_any_step_equals_the_uninterrupted_one(change, step, digits, tmp_path):
    config = replace(CONFIG, **change)
    part = digits[0][:90], digits[1][:90]
    held = digits[0][100:130], digits[1][100:130]
    whole = loop.begin(config)
    loop.advance(whole, config, *part, held)

    def kill(state: loop.State) -> None:
        if state.step == step:
            checkpoint.save(tmp_path / "c", state, config)
            raise Killed

    state = loop.begin(config)
    with pytest.raises(Killed):
        loop.advance(state, config, *part, held, after_step=kill)
    resumed = loop.begin(config)
    checkpoint.restore(tmp_path / "c", resumed, config, SHAPE)
    assert resumed.step == step
    loop.advance(resumed, config, *part, held)

    for name, tensor in state_tensors(whole).items():
        assert torch.equal(tensor, state_tensors(resumed)[name]), name
    assert [(e.epoch, e.rate, e.loss, e.validation_error) for e in whole.history] == [
        (e.epoch, e.rate, e.loss, e.validation_error) for e in resumed.history
    ]


def state_tensors(state: loop.State) -> dict[str, Tensor]:
    tensors = {f"network.{name}": t for name, t in state.network.state_dict().items()}
    tensors |= {f"averaged.{name}": t for name, t in state.averaged.state_dict().items()}
    momentum = (state.optimizer.state[p]["momentum_buffer"] for p in state.network.parameters())
    return tensors | {f"momentum.{number}": t for number, t in enumerate(momentum)}


@pytest.mark.parametrize("change", [{"model": "mlp"}, {"seed": 3}, {"rate": 0.01}])
def test_a_checkpoint_of_another_training_is_refused(change, tmp_path):
    other = replace(CONFIG, **change)
    checkpoint.save(tmp_path / "c", loop.begin(CONFIG), CONFIG)
    with pytest.raises(apac.InputError, match="is not a checkpoint of this training; begin again with --overwrite"):
        checkpoint.restore(tmp_path / "c", loop.begin(other), other, SHAPE)


def test_a_truncated_checkpoint_is_refused(tmp_path):
    checkpoint.save(tmp_path / "c", loop.begin(CONFIG), CONFIG)
    data = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(data[: len(data) // 2])
    with pytest.raises(apac.InputError, match="damaged or truncated; begin again with --overwrite"):
        checkpoint.restore(tmp_path / "c", loop.begin(CONFIG), CONFIG, SHAPE)


def test_a_checkpoint_is_due_by_time_within_an_epoch_too(tmp_path, monkeypatch):
    clock = iter([0.0, 10.0, 31.0, 31.0, 40.0])
    monkeypatch.setattr(checkpoint.time, "monotonic", lambda: next(clock))
    keep, state = checkpoint.Checkpointer(tmp_path / "c", CONFIG, checkpoint.Stop()), loop.begin(CONFIG)
    keep(state)
    assert not (tmp_path / "c").exists()
    keep(state)
    assert (tmp_path / "c").exists()
    (tmp_path / "c").unlink()
    keep(state)
    assert not (tmp_path / "c").exists()


def test_a_signal_asks_to_stop_and_the_handlers_come_back():
    import os
    import signal

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    for number in (signal.SIGINT, signal.SIGTERM):
        with checkpoint.stop_on_signal() as stop:
            assert not stop.asked
            os.kill(os.getpid(), number)
            assert stop.asked
    with checkpoint.stop_on_signal() as stop, pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.asked
        os.kill(os.getpid(), signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
