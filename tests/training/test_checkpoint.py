"""Training can be interrupted at any step and resumes with the same result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import apac
from apac.training import checkpoint, loop
from small_training import CONFIG, MNIST, fresh, noisy_network, train

SHAPE = (1, 28, 28)
TRAINING = replace(CONFIG, epochs=3, ema_decay=0.9)
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "cnn": ("mnist-cnn", {}),
    "muon": ("mnist-cnn", {"optimizer": "muon", "warmup": 0.3}),
    "adamw": ("mnist-cnn", {"optimizer": "adamw"}),
    "tied": ("mnist-mlp", {"tied": 0.4}),
    "batch normalization and dropout": (None, {}),
}
UNINTERRUPTED: dict[str, loop.TrainingState] = {}


class Killed(Exception):
    pass


@pytest.mark.parametrize(
    ("case", "step"), [("cnn", 1), ("cnn", 14), ("muon", 7), ("adamw", 8), ("tied", 3), ("tied", 7)]
)
def test_a_training_resumed_from_any_step_equals_the_uninterrupted_one(case, step, digits):
    check_resuming(case, step, digits)


@pytest.mark.parametrize("step", [2, 10])
def test_a_network_with_batch_normalization_and_dropout_resumes_to_the_same_weights(step, digits):
    check_resuming("batch normalization and dropout", step, digits)


def check_resuming(case: str, step: int, digits: tuple[Tensor, Tensor]) -> None:
    network, change = CASES[case]
    config = replace(TRAINING, **change)
    part = digits[0][:90], digits[1][:90]
    held_out = digits[0][100:130], digits[1][100:130]
    stored: list[tuple[dict[str, Tensor], dict[str, str]]] = []

    def kill(state: loop.TrainingState) -> None:
        if state.step == step:
            tensors, metadata = checkpoint.to_tensors(state, config)
            stored.append(({name: tensor.clone() for name, tensor in tensors.items()}, metadata))
            raise Killed

    if case not in UNINTERRUPTED:
        UNINTERRUPTED[case] = train(config, part, network=network or noisy_network(), held_out=held_out)
    uninterrupted = UNINTERRUPTED[case]
    with pytest.raises(Killed):
        train(config, part, network=network or noisy_network(), held_out=held_out, after_step=kill)
    resumed = fresh(config, network or noisy_network())
    checkpoint.restore(resumed, config, SHAPE, *stored[0])
    assert resumed.step == step
    loop.run_epochs(resumed, config, MNIST, *part, held_out)

    # The same operations on the same numbers in the same order: equal to the last bit.
    expected = checkpoint.to_tensors(uninterrupted, config)[0]
    for name, tensor in checkpoint.to_tensors(resumed, config)[0].items():
        assert torch.equal(tensor, expected[name]), name
    assert [replace(epoch, seconds=0) for epoch in resumed.history] == [
        replace(epoch, seconds=0) for epoch in uninterrupted.history
    ]


@pytest.mark.parametrize(
    ("network", "change"), [("mnist-mlp", {}), ("mnist-cnn", {"seed": 3}), ("mnist-cnn", {"learning_rate": 0.01})]
)
def test_a_checkpoint_of_another_training_is_rejected(network, change):
    other = replace(TRAINING, **change)
    stored = checkpoint.to_tensors(fresh(TRAINING), TRAINING)
    with pytest.raises(apac.InputError, match="belongs to another training; start again with overwrite=True"):
        checkpoint.restore(fresh(other, network), other, SHAPE, *stored)


def test_a_checkpoint_after_the_last_step_is_rejected(digits):
    state = fresh(TRAINING)
    state.step = 10**18
    with pytest.raises(apac.InputError, match="after the last one"):
        loop.run_epochs(state, TRAINING, MNIST, digits[0][:90], digits[1][:90], (digits[0][:0], digits[1][:0]))
