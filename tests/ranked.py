"""Functions on several ranks, processes of one gloo group on this machine, and a training for them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
from torch import Tensor, nn

import apac
from apac.distributed.ranks.group import Group

TIMEOUT = 120  # seconds; a rank that waits longer for another one fails


def on_ranks(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return what function(*arguments) returns on each rank. It must be importable: the ranks are spawned."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(
            _run, (size, folder, function, arguments), nprocs=size, start_method="spawn"
        )
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(size)]


def _run(rank: int, size: int, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{folder}/store", size)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    try:
        torch.save(function(*arguments), Path(folder) / f"{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()


class Double(nn.Module):
    """A network in float64, in which batch normalization, dropout and an unused layer make the batch matter."""

    def __init__(self, random: float = 0.5) -> None:
        super().__init__()
        self.unused = nn.Linear(3, 3)
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(random),
            nn.Flatten(),
            nn.Linear(36, 5),
            nn.BatchNorm1d(5, momentum=None, affine=False),
            nn.Linear(5, 3),
        ).double()

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.layers(images.double())
        return result


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(70, 1, 8, 8, generator=generator), torch.arange(70) % 3


def trained(config: apac.TrainConfig, network: str | None = None, deformation: Any = None) -> dict[str, Any]:
    torch.manual_seed(Group.current().rank)  # the ranks start from the weights of the first
    run = apac.train(network or Double(), data(), deformation or apac.Flip(), config=config)
    return {"weights": run.network.state_dict(), "history": [(e.loss, e.validation_error) for e in run.history]}


def trained_and_refused(config: apac.TrainConfig) -> dict[str, Any]:
    """Train, and return the sentences of errors of one rank or of all."""
    group = Group.current()

    def fail_on(rank: int, sentence: str) -> None:
        if group.rank == rank:
            raise apac.StorageError(sentence)

    refused = []
    for action in (
        lambda: trained(replace(config, seed=group.rank if group.rank < 2 else 0)),
        lambda: trained(replace(config, batch_size=1)),
        lambda: apac.train(Double(), data(), apac.Flip(), config=config, out=None if group.first else "run"),
        lambda: apac.train(Double(), data(), apac.Flip(), config=config, cache="pixels" if group.first else None),
        lambda: apac.train(Double() if group.first else nn.Sequential(Double()), data(), apac.Flip(), config=config),
        lambda: group.together(lambda: fail_on(1, "there is no data.")),
        lambda: group.on_first(lambda: fail_on(0, "the folder is full.")),
    ):
        try:
            action()
        except apac.ApacError as error:
            assert error.agreed
            refused.append(str(error))
    return trained(config) | {"refused": refused}
