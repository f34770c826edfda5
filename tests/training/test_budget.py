"""Epochs that a time allows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from apac.errors import InputError
from apac.paper import recipes
from apac.training import budget
from apac.training.config import TrainConfig

IMAGES = torch.zeros(1000, 1, 28, 28, dtype=torch.uint8)


def test_epochs_are_as_many_as_fit_together(monkeypatch):
    monkeypatch.setattr(budget, "_seconds_a_step", lambda config, images: 0.5)
    config = TrainConfig("mnist", "cnn", batch=90, validation=0.1)  # 900 images: 10 steps, 5 s an epoch

    def twice(epochs: int) -> list[TrainConfig]:
        return [replace(config, epochs=epochs), replace(config, epochs=max(1, epochs // 5))]

    assert budget.epochs_within(twice, IMAGES, 62) == 10
    assert budget.epochs_within(twice, IMAGES, 10) == 1
    with pytest.raises(InputError, match=r"one epoch of mnist-cnn takes 5 s .* only 9.9 s; give more hours"):
        budget.epochs_within(twice, IMAGES, 9.9)
    assert budget.epochs_within(twice, IMAGES, 1e300) == budget.epochs_within(twice, IMAGES, math.inf) == 15_000


@pytest.mark.parametrize("hours", [0.05, 0.1, 0.5, 2])
def test_tied_and_free_epochs_are_counted_as_the_loop_makes_them(hours, monkeypatch):
    monkeypatch.setattr(budget, "_seconds_a_step", lambda config, images: 11.0 if config.tied else 62.5)
    recipe = recipes.find("cifar10-mlp")  # two steps an epoch: 22 s tied and 125 s free

    def takes(epochs: int) -> float:
        made = [(int(0.85 * each.epochs), each.epochs) for each in recipe.with_epochs(epochs).trainings.values()]
        return sum(22 * tied + 125 * (all_ - tied) for tied, all_ in made)

    if takes(1) > 3600 * hours:
        with pytest.raises(InputError, match="give more hours"):
            recipe.within(hours, IMAGES)
        return
    epochs = recipe.within(hours, IMAGES).deformed.epochs
    assert takes(epochs) <= 3600 * hours < takes(epochs + 1)


@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_a_larger_step_is_measured_as_longer(optimizer, monkeypatch):
    monkeypatch.setattr(budget, "MEASURED", 0.5)
    small, large = (TrainConfig("mnist", "cnn", batch=batch, optimizer=optimizer) for batch in (5, 500))
    assert 0 < budget._seconds_a_step(small, IMAGES) < budget._seconds_a_step(large, IMAGES) < 5
