"""Epochs that a time allows."""

from __future__ import annotations

import pytest
import torch

from apac.errors import InputError
from apac.training import budget
from apac.training.config import TrainConfig

IMAGES = torch.zeros(1000, 1, 28, 28, dtype=torch.uint8)


def test_epochs_are_the_seconds_over_those_of_an_epoch(monkeypatch):
    monkeypatch.setattr(budget, "_seconds_a_step", lambda config, images: 0.5)
    config = TrainConfig("mnist", "cnn", batch=90, validation=0.1)  # 900 images: 10 steps, 5 s an epoch
    assert budget.epochs_within(config, IMAGES, 52) == 10
    assert budget.epochs_within(config, IMAGES, 5) == 1
    with pytest.raises(InputError, match=r"one epoch of mnist-cnn takes 5 s .* only 4.9 s; give more hours"):
        budget.epochs_within(config, IMAGES, 4.9)


@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_a_larger_step_is_measured_as_longer(optimizer, monkeypatch):
    monkeypatch.setattr(budget, "MEASURED", 0.5)
    small, large = (TrainConfig("mnist", "cnn", batch=batch, optimizer=optimizer) for batch in (5, 500))
    assert 0 < budget._seconds_a_step(small, IMAGES) < budget._seconds_a_step(large, IMAGES) < 5
