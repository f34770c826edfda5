"""The number of images in a batch of the network: the largest whose rows have the bits of smaller batches."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from apac.classify import shared_batch
from apac.classify.shared_batch import images_per_batch

IMAGE = torch.rand(1, 2, 2)


class Machine:
    """A network that takes some seconds, and rounds differently from some number of rows on."""

    def __init__(self, seconds: float, *, changes_at: int) -> None:
        self.seconds, self.changes_at, self.now = seconds, changes_at, 0.0
        self.batches: list[int] = []

    def __call__(self, batch: Tensor) -> Tensor:
        self.now += self.seconds
        self.batches.append(len(batch))
        return batch.flatten(1) + (1e-7 if len(batch) >= self.changes_at else 0)


@pytest.mark.parametrize(("changes_at", "expected"), [(1000, 4), (68, 3), (64, 3), (34, 1), (32, 1)])
def test_the_largest_batch_with_the_same_bits_is_chosen(changes_at, expected, monkeypatch):
    machine = Machine(0.001, changes_at=changes_at)
    monkeypatch.setattr(shared_batch, "time", SimpleNamespace(monotonic=lambda: machine.now))
    assert images_per_batch(machine, IMAGE, (16, 17), limit=4) == expected
    assert max(machine.batches) <= 68


def test_a_slow_network_runs_once(monkeypatch):
    machine = Machine(1.0, changes_at=1000)
    monkeypatch.setattr(shared_batch, "time", SimpleNamespace(monotonic=lambda: machine.now))
    assert images_per_batch(machine, IMAGE, (16, 17), limit=4) == 1
    assert machine.batches == [16]
