"""Measure the memory of a training on a folder of many photos that are decoded into a cache.

    python benchmarks/train_folder.py photos --files 20000 --size 256 --batch-size 16

writes JPEG files of 256 × 256 pixels to the folder unless they are there, trains a few steps (with many, to the end of
the epoch, when the held-out images are evaluated), and prints the peak of the resident memory after each stage.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import apac
from apac.errors import Interrupted

CLASSES, DISTINCT = 4, 25  # photos of a class that differ; the others are hard links


def write_photos(folder: Path, count: int) -> None:
    """Write photos of smooth noise, which take as long to decode as real ones."""
    random = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"class {number % CLASSES}" / f"{number:07}.jpg"
        original = path.with_name(f"{number % (CLASSES * DISTINCT):07}.jpg")
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if path == original:
            pixels = random.integers(0, 256, (24, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).resize((256, 256), Image.Resampling.BICUBIC).save(path, quality=85)
        else:
            os.link(original, path)


def peak() -> float:
    """Return the peak of the resident memory of this process, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


class Report:
    """A progress callback that prints the peak of the memory when a stage ends."""

    stage = ""

    def __call__(self, stage: str, done: int, total: int, note: str = "") -> None:
        if stage != self.stage:
            print(f"{peak():.2f} GB  before {stage} {note}", flush=True)
            self.stage = stage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--size", type=int, help="of the images, as in apac train")
    parser.add_argument("--batch-size", type=int, default=apac.TrainConfig().batch_size)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    write_photos(arguments.folder, arguments.files)
    config = apac.TrainConfig(epochs=1, size=arguments.size, batch_size=arguments.batch_size)
    steps = itertools.count(1)
    print(f"{peak():.2f} GB  at the start")
    with tempfile.TemporaryDirectory() as cache:
        try:
            apac.train(
                "resnet",
                arguments.folder,
                config=config,
                cache=cache,
                progress=Report(),
                should_stop=lambda: next(steps) >= arguments.steps,
            )
            print(f"{peak():.2f} GB  after the epoch")
        except Interrupted:
            print(f"{peak():.2f} GB  after {arguments.steps} steps")


if __name__ == "__main__":
    main()
