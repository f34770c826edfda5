"""A map-style torch Dataset, and a network that is trained on it."""

from __future__ import annotations

import torch
from torch import Tensor

import apac


class Items:
    """A map-style Dataset of random pixels."""

    def __init__(self, count: int = 24, broken: int | None = None, shape: tuple[int, ...] = (1, 8, 8)) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8, generator=generator)
        self.broken, self.shape = broken, shape

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == self.broken:
            if self.shape == (1, 8, 8):
                raise KeyError("no such file")
            return torch.zeros(self.shape, dtype=torch.uint8), 0
        return self.images[index], index % 2


def network() -> torch.nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))


def weights(run: apac.Run) -> Tensor:
    return torch.cat([p.detach().flatten() for p in run.network.parameters()])
