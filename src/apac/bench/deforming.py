"""Deformations per second, with separate parameters for each image."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor

from apac.bench import peers
from apac.bench.race import Entry, race
from apac.deform.cpu import torch_path
from apac.inference.workers import torch_threads, worker_pool
from apac.progress import Progress
from apac.randomness import generator
from apac.runs.presets import PRESETS

IMAGES = 8192
BATCH = 1024  # the fastest for apac
FEW = 1024  # for slow contestants
CALLS = (1, 2, 10, 100, 1000)  # images in a single call
IMAGES_PER_TURN, CALLS_PER_TURN = 200, 10  # at least, so that setting the number of threads does not count
LARGE = 224  # side in pixels
LARGE_IMAGES, LARGE_BATCH, LARGE_FEW = 64, 16, 8
APAC, TORCH = "apac", "apac without numba"


def measure(rounds: int, progress: Progress) -> list[Entry]:
    return [
        entry
        for preset in PRESETS
        for entries in (
            _measure(preset, rounds, progress),
            _measure_large(preset, rounds, progress),
            *(_measure_calls(preset, count, rounds, progress) for count in CALLS),
        )
        for entry in entries
    ]


def _measure(preset: str, rounds: int, progress: Progress) -> list[Entry]:
    shape = peers.SHAPES[preset]
    images = torch.rand(IMAGES, *shape)
    deform = _apac(preset)

    def by_torch() -> float:
        with torch_path():
            return _on_all_cores(deform, images, BATCH)()

    with ExitStack() as stack:
        contestants = {APAC: _on_all_cores(deform, images, BATCH), TORCH: by_torch}
        if peers.installed("kornia"):
            contestants |= _kornia(peers.kornia(preset), images[:FEW], (128, 256, 512))
        for peer in peers.LOOPS if preset in peers.ELASTIC else ():
            if peers.installed(peer):
                loop = peers.loop_in_processes(peer, preset, FEW)
                contestants[f"{peer}, one process per core"] = stack.enter_context(loop)
        return _race(f"deformations per second, {preset} preset, {_times(shape)}", contestants, rounds, progress)


def _measure_large(preset: str, rounds: int, progress: Progress) -> list[Entry]:
    shape = (3, LARGE, LARGE)
    images = torch.rand(LARGE_IMAGES, *shape)
    contestants = {APAC: _on_all_cores(_apac(preset), images, LARGE_BATCH)}
    if peers.installed("kornia"):
        chain = peers.kornia(preset, size=LARGE)
        contestants |= _kornia(chain, images[:LARGE_FEW], (LARGE_FEW // 4, LARGE_FEW // 2))
    return _race(f"deformations per second, {preset} preset, {_times(shape)}", contestants, rounds, progress)


def _measure_calls(preset: str, count: int, rounds: int, progress: Progress) -> list[Entry]:
    """Measure single calls of `count` images, which a training loop of one's own or a data loader makes."""
    shape = peers.SHAPES[preset]
    images = torch.rand(count, *shape)
    repeats = max(CALLS_PER_TURN, IMAGES_PER_TURN // count)

    def calls(deform: Callable[[Tensor], Tensor], threads: int) -> Callable[[], float]:
        def work() -> float:
            with torch_threads(threads):
                for _ in range(repeats):
                    deform(images)
            return repeats * count

        return work

    threads = torch.get_num_threads()
    contestants = {APAC: calls(_apac(preset), threads)}
    if peers.installed("kornia"):
        chain = peers.kornia(preset)
        for number in sorted({1, threads}):
            contestants[f"kornia, torch threads: {number}"] = calls(chain, number)
    group = f"deformations per second, {preset} preset, {_times(shape)}, calls of {count} images"
    return _race(group, contestants, rounds, progress)


def _apac(preset: str) -> Callable[[Tensor], Tensor]:
    u = PRESETS[preset]()
    return lambda batch: u(batch, generator=generator(0, "bench", len(batch)))


def _kornia(
    chain: Callable[[Tensor], Tensor], images: Tensor, batches: tuple[int, ...]
) -> dict[str, Callable[[], float]]:
    contestants = {}
    for batch in batches:
        contestants[f"kornia, batches of {batch}"] = _sequential(chain, images, batch)
        contestants[f"kornia, batches of {batch}, one per core"] = _on_all_cores(chain, images, batch)
    return contestants


def _race(group: str, contestants: dict[str, Callable[[], float]], rounds: int, progress: Progress) -> list[Entry]:
    speed = race(group, contestants, rounds, progress)
    return [Entry(group, name, value, "images/s", APAC, speed[APAC] / value) for name, value in speed.items()]


def _times(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


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
