"""Deformations a second, one Θ per image."""

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
BATCH = 1024  # of ours: the fastest
FEW = 1024  # for what is slow
OURS, TORCH = "apac", "apac by torch alone"
PRESETS = {"mnist": presets.mnist, "cifar10": presets.cifar10}


def measure(rounds: int, progress: Progress) -> list[Entry]:
    return [entry for preset in PRESETS for entry in _measure(preset, rounds, progress)]


def _measure(preset: str, rounds: int, progress: Progress) -> list[Entry]:
    shape = peers.SHAPES[preset]
    images = torch.rand(IMAGES, *shape)
    u = PRESETS[preset]()

    def ours(part: Tensor) -> Tensor:
        return u.apply(part, u.sample(len(part), shape, generator=generator(0, "bench", len(part))))

    def by_torch() -> float:
        with torch_path():
            return _in_batches(ours, images, BATCH)()

    with ExitStack() as stack:
        contestants = {OURS: _in_batches(ours, images, BATCH), TORCH: by_torch}
        if peers.installed("kornia"):
            chain = peers.kornia(preset)
            for batch in (128, 256, 512):
                contestants[f"kornia, batches of {batch}"] = _one_after_another(chain, images[:FEW], batch)
                contestants[f"kornia, batches of {batch}, a core each"] = _in_batches(chain, images[:FEW], batch)
        for peer in peers.LOOPS:
            if peers.installed(peer):
                loop = peers.loop_in_processes(peer, preset, FEW)
                contestants[f"{peer}, a process a core"] = stack.enter_context(loop)
        group = f"deformations a second, {preset} preset, {' × '.join(map(str, shape))}"
        speed = race(group, contestants, rounds, progress)
    return [Entry(group, name, value, "images/s", OURS, speed[OURS] / value) for name, value in speed.items()]


def _in_batches(deform: Callable[[Tensor], Tensor], images: Tensor, batch: int) -> Callable[[], float]:
    def work() -> float:
        with worker_pool() as threads:
            list(threads.map(deform, images.split(batch)))
        return len(images)

    return work


def _one_after_another(deform: Callable[[Tensor], Tensor], images: Tensor, batch: int) -> Callable[[], float]:
    def work() -> float:
        for part in images.split(batch):
            deform(part)
        return len(images)

    return work
