"""Deformations per second, with separate parameters for each image."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor

from apac.bench import peers
from apac.bench.race import Entry, race
from apac.deform import presets
from apac.deform.cpu import torch_path
from apac.inference.workers import worker_pool
from apac.progress import Progress
from apac.randomness import generator

IMAGES = 8192
BATCH = 1024  # the fastest for apac
FEW = 1024  # for slow contestants
APAC, TORCH = "apac", "apac without numba"
PRESETS = {"mnist": presets.mnist, "cifar10": presets.cifar10}


def measure(rounds: int, progress: Progress) -> list[Entry]:
    return [entry for preset in PRESETS for entry in _measure(preset, rounds, progress)]


def _measure(preset: str, rounds: int, progress: Progress) -> list[Entry]:
    shape = peers.SHAPES[preset]
    images = torch.rand(IMAGES, *shape)
    u = PRESETS[preset]()

    def deform(batch: Tensor) -> Tensor:
        return u.apply(batch, u.sample(len(batch), shape, generator=generator(0, "bench", len(batch))))

    def by_torch() -> float:
        with torch_path():
            return _on_all_cores(deform, images, BATCH)()

    with ExitStack() as stack:
        contestants = {APAC: _on_all_cores(deform, images, BATCH), TORCH: by_torch}
        if peers.installed("kornia"):
            chain = peers.kornia(preset)
            for batch in (128, 256, 512):
                contestants[f"kornia, batches of {batch}"] = _sequential(chain, images[:FEW], batch)
                contestants[f"kornia, batches of {batch}, one per core"] = _on_all_cores(chain, images[:FEW], batch)
        for peer in peers.LOOPS:
            if peers.installed(peer):
                loop = peers.loop_in_processes(peer, preset, FEW)
                contestants[f"{peer}, one process per core"] = stack.enter_context(loop)
        group = f"deformations per second, {preset} preset, {' × '.join(map(str, shape))}"
        speed = race(group, contestants, rounds, progress)
    return [Entry(group, name, value, "images/s", APAC, speed[APAC] / value) for name, value in speed.items()]


def _on_all_cores(deform: Callable[[Tensor], Tensor], images: Tensor, batch: int) -> Callable[[], float]:
    def work() -> float:
        with worker_pool() as pool:
            list(pool.map(deform, images.split(batch)))
        return len(images)

    return work


def _sequential(deform: Callable[[Tensor], Tensor], images: Tensor, batch: int) -> Callable[[], float]:
    def work() -> float:
        for part in images.split(batch):
            deform(part)
        return len(images)

    return work
