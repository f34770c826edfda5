"""A person's own images: a folder with a sub-folder for each class.

FOLDER/CLASS/image.jpg, of which a fifth of each class is kept for testing; or FOLDER/train/CLASS/... and
FOLDER/test/CLASS/... where people made the split themselves.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from PIL import Image
from torch import Tensor

from apac.data.base import Dataset
from apac.data.image_file import FORMATS, read_image
from apac.errors import InputError
from apac.progress import Progress, silent

Corrupt = Literal["refuse", "skip"]

SIDE = 32  # pixels, of the paper's networks for pictures
TEST_SHARE = 0.2
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pnm"}
GREY_MODES = ("1", "L", "LA", "I", "F")
NAMED = 5  # files in a message


def load(folder: Path, *, corrupt: Corrupt = "refuse", progress: Progress = silent) -> Dataset:
    """Images of any size as C × 32 × 32: the middle of each, resized; grey if all of them are grey."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; give one with a sub-folder of images for each class.")
    own_split = (folder / "train").is_dir() and (folder / "test").is_dir()
    if own_split:
        parts = [_files(folder / "train"), _files(folder / "test")]
        unknown = sorted(set(parts[1]) - set(parts[0]))
        if unknown:
            raise InputError(f"{folder / 'test'} has the class {unknown[0]!r}, which {folder / 'train'} lacks.")
    else:
        parts = [_files(folder)]
    classes = tuple(parts[0])
    if len(classes) < 2:
        raise InputError(f"{folder} has images of one class only, {classes[0]!r}; a classifier needs two or more.")
    sound = _sound([path for part in parts for files in part.values() for path in files], corrupt)
    channels = 1 if sound and all(sound.values()) else 3
    read = _read(list(sound), channels, corrupt, progress)
    if own_split:
        train, test = ([(path, c) for c in part for path in part[c] if path in read] for part in parts)
    else:
        train, test = _split(folder, {c: [path for path in files if path in read] for c, files in parts[0].items()})
    _check_all_present(classes, train, folder)
    number = {name: index for index, name in enumerate(classes)}

    def images(of: Sequence[tuple[Path, str]]) -> Tensor:
        return torch.stack([read[path] for path, _ in of]) if of else torch.empty(0, channels, SIDE, SIDE).byte()

    def labels(of: Sequence[tuple[Path, str]]) -> Tensor:
        return torch.tensor([number[c] for _, c in of], dtype=torch.int64)

    return Dataset(str(folder), images(train), labels(train), images(test), labels(test), classes)


def _files(folder: Path) -> dict[str, list[Path]]:
    """The image files of each class, all in order of their names."""
    found = {}
    for each in sorted(folder.iterdir()):
        if each.is_dir() and not each.name.startswith("."):
            found[each.name] = sorted(p for p in each.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
            if not found[each.name]:
                raise InputError(f"the class folder {each} has no image in it; add some or remove it.")
    if not found:
        raise InputError(f"{folder} has no sub-folders; give a folder with a sub-folder of images for each class.")
    return found


def _sound(paths: Sequence[Path], corrupt: Corrupt) -> dict[Path, bool]:
    """The files that open as images, each with whether it is grey; nothing is decoded yet."""
    found, bad = {}, []
    for path in paths:
        try:
            with Image.open(path, formats=FORMATS) as file:
                found[path] = file.mode.startswith(GREY_MODES)
        except Exception:  # a damaged file makes Pillow raise almost anything
            bad.append(path)
    _report(bad, corrupt)
    return found


def _read(paths: Sequence[Path], channels: int, corrupt: Corrupt, progress: Progress) -> dict[Path, Tensor]:
    found, bad = {}, []
    for done, path in enumerate(paths, start=1):
        try:
            found[path] = read_image(path, (channels, SIDE, SIDE))[0]
        except InputError:
            bad.append(path)
        progress("reading images", done, len(paths))
    _report(bad, corrupt)
    return found


def _report(bad: Sequence[Path], corrupt: Corrupt) -> None:
    if not bad:
        return
    named = ", ".join(map(str, bad[:NAMED])) + (f" and {len(bad) - NAMED} others" if len(bad) > NAMED else "")
    if corrupt == "refuse":
        raise InputError(f"these files cannot be read as images: {named}; mend or remove them, or have them skipped.")
    logging.getLogger("apac").warning("skipped what cannot be read as an image: %s.", named)


def _split(folder: Path, by_class: dict[str, list[Path]]) -> tuple[list[tuple[Path, str]], list[tuple[Path, str]]]:
    """A fifth of each class to test: by a digest of the name, so that a file keeps its side when others come or go."""
    train, test = [], []
    for name, files in by_class.items():
        order = sorted(files, key=lambda path: hashlib.sha256(str(path.relative_to(folder)).encode()).digest())
        count = round(TEST_SHARE * len(order)) or min(1, len(order) - 1)
        test += [(path, name) for path in order[:count]]
        train += [(path, name) for path in order[count:]]
    return train, test


def _check_all_present(classes: Sequence[str], train: Sequence[tuple[Path, str]], folder: Path) -> None:
    missing = [name for name in classes if name not in {c for _, c in train}]
    if missing:
        raise InputError(f"the class {missing[0]!r} of {folder} has no readable image to train on; add some.")
