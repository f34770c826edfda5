"""Folders of synthetic images, one color per class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from apac.deform import presets

DEFAULT = presets.photos()  # deformation of folders
COLORS = {"apple": (200, 30, 30), "leaf": (30, 180, 40), "sky": (60, 90, 220)}


def paint(
    path: Path, color: tuple[int, ...], size: tuple[int, int] = (40, 30), mode: str = "RGB", seed: int = 0
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(-25, 25, (size[1], size[0], 3))
    pixels = (np.array(color) + noise).clip(0, 255).astype(np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


def gallery(root: Path, count: int = 10, mode: str = "RGB") -> Path:
    for name, color in COLORS.items():
        for i in range(count):
            suffix = ("png", "jpg", "webp")[i % 3] if mode == "RGB" else "png"
            paint(root / name / f"{i:02}.{suffix}", color, (24 + 7 * i, 40 + i), mode, seed=i)
    return root
