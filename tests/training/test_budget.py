"""The number of epochs that fit into a given time."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import apac
from apac.errors import InputError
from apac.paper import recipes
from apac.training import budget
from apac.training.config import TrainConfig

IMAGES = torch.zeros(1000, 1, 28, 28, dtype=torch.uint8)


def test_epochs_are_as_many_as_fit_together(monkeypatch):
    monkeypatch.setattr(budget, "_seconds_per_step", lambda config, *_: 0.5)
    config = TrainConfig(batch_size=90, validation_fraction=0.1)  # 900 images: 10 steps, 5 s an epoch

    def twice(epochs: int) -> list[TrainConfig]:
        return [replace(config, epochs=epochs), replace(config, epochs=max(1, epochs // 5))]

    def within(configs, seconds: float) -> int:
        return budget.epochs_within(configs, "mnist-cnn", apac.presets.mnist(), IMAGES, seconds)

    assert within(twice, 62) == 10
    assert within(twice, 10) == 1
    with pytest.raises(InputError, match=r"one epoch of mnist-cnn takes 5 s .* only 9.9 s; allow more hours"):
        within(twice, 9.9)
    assert within(twice, 1e300) == within(twice, math.inf) == 15_000


@pytest.mark.parametrize("hours", [0.05, 0.1, 0.5, 2])
def test_tied_and_free_epochs_are_counted_as_in_the_loop(hours, monkeypatch):
    monkeypatch.setattr(budget, "_seconds_per_step", lambda config, *_: 11.0 if config.tied else 62.5)
    recipe = recipes.find("cifar10-mlp")
    # two steps an epoch: 22 s tied and 125 s free
    recipe = replace(recipe, config=replace(recipe.config, tied=0.85, validation_fraction=0.02))

    def duration(epochs: int) -> float:
        counts = [training.config.epochs for training in recipe.with_epochs(epochs).trainings.values()]
        return sum(22 * int(0.85 * count) + 125 * (count - int(0.85 * count)) for count in counts)

    if duration(1) > 3600 * hours:
        with pytest.raises(InputError, match="allow more hours"):
            recipe.within(hours, IMAGES)
        return
    epochs = recipe.within(hours, IMAGES).config.epochs
    assert duration(epochs) <= 3600 * hours < duration(epochs + 1)


@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_the_mean_time_of_the_steps_after_the_first_is_measured(optimizer, monkeypatch):
    ends = itertools.chain([10.0, 13.0, 14.0, 16.5], itertools.repeat(99.0))  # of the steps
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: next(ends)))
    monkeypatch.setattr(budget, "run_epochs", steps_only)
    config = TrainConfig(optimizer=optimizer).resolve("mnist-cnn", "mnist")
    assert budget._seconds_per_step(config, "mnist-cnn", apac.presets.mnist(), IMAGES) == pytest.approx(6.5 / 3)


def steps_only(state, *arguments, after_step, **options):
    while True:
        after_step(state)


def test_a_real_step_takes_time(monkeypatch):
    monkeypatch.setattr(budget, "MEASURED_SECONDS", 0.0)
    config = TrainConfig(batch_size=5).resolve("mnist-cnn", "mnist")
    assert budget._seconds_per_step(config, "mnist-cnn", apac.presets.mnist(), IMAGES) > 0
