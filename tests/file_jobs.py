"""A small network that decides image files, and folders of files to decide."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import apac
from apac import limits
from apac.data.normalize import Scaling
from apac.distributed.deciding import decide_files
from apac.distributed.merge import merge_parts
from apac.randomness import generator
from apac.runs.file_classifier import FileClassifier

SIDE = 8
CLASSES = ("cat", "dog", "eel")


def file_classifier(seed: int = 0) -> FileClassifier:
    """Return what decides files of 8 × 8 gray pixels, with a different number of passes for each."""
    layer = nn.Linear(SIDE * SIDE, len(CLASSES))
    with torch.no_grad():
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator(0, "test", 0)))
        layer.bias.zero_()
    classifier = apac.Classifier(
        nn.Sequential(nn.Flatten(), layer).eval(),
        apac.Compose(apac.Homography(0.1), apac.Flip()),
        apac.Certified(error=0.05, limit=64),
        seed=seed,
        image_shape=(1, SIDE, SIDE),
    )
    return FileClassifier(
        classifier,
        Scaling(),
        None,
        strength=1.0,
        image_shape=(1, SIDE, SIDE),
        fit="crop",
        digits=False,
        classes=CLASSES,
        max_pixels=limits.PIXELS,
    )


def seeded(deciding: FileClassifier, seed: int) -> FileClassifier:
    return replace(deciding, classifier=replace(deciding.classifier, seed=seed))


def write_images(folder: Path, count: int, seed: int = 0) -> Path:
    """Write files of noise into two subfolders."""
    random = np.random.default_rng(seed)
    for number in range(count):
        path = folder / "ab"[number % 2] / f"{number:05}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (SIDE, SIDE), dtype=np.uint8)).save(path)
    return folder


def merged(deciding: FileClassifier, source: Path, out: Path, part_size: int = 4) -> bytes:
    """Decide a folder, and return the joined file."""
    decide_files(deciding, [str(source)], out, part_size=part_size)
    merge_parts(out, out.with_suffix(".csv"))
    return out.with_suffix(".csv").read_bytes()
