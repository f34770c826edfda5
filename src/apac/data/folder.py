"""A person's own images: a folder with a sub-folder for each class.

FOLDER/CLASS/image.jpg, of which about a fifth of each class is kept for testing; or FOLDER/train/CLASS/... and
FOLDER/test/CLASS/... (or val, valid, validation) where people made the split themselves.
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
from apac.progress import Progress, no_progress

OnUnreadable = Literal["refuse", "skip"]
Files = dict[str, list[Path]]  # of each class, by its name

SIDE = 32  # pixels, of the paper's networks for pictures
TEST_SHARE = 0.2
TEST_NAMES = ("test", "val", "valid", "validation")
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pnm"}
GRAY_MODES = ("1", "L", "LA", "I", "F")
NAMED = 5  # files in a message


def load(
    folder: Path,
    *,
    on_unreadable: OnUnreadable = "refuse",
    channels: int | None = None,
    progress: Progress = no_progress,
) -> Dataset:
    """Images of any size as C × 32 × 32: the middle of each, resized; gray if all of them are stored as gray, unless a
    number of channels is given."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; give one with a sub-folder of images for each class.")
    train, test = _sides(folder)
    classes = tuple(train)
    if len(classes) < 2:
        raise InputError(f"{folder} has images of one class only, {classes[0]!r}; a classifier needs two or more.")
    paths = [path for side in (train, test) for files in side.values() for path in files]
    read = _read(paths, channels or _channels(paths), on_unreadable, progress)
    for name in classes:
        if not any(path in read for path in train[name]):
            raise InputError(f"the class {name!r} of {folder} has no readable image to train on; add some.")

    def tensors(side: Files) -> tuple[Tensor, Tensor]:
        found = [(read[path], c) for c, name in enumerate(classes) for path in side.get(name, []) if path in read]
        empty = torch.empty(0, *next(iter(read.values())).shape, dtype=torch.uint8)
        images = torch.stack([image for image, _ in found]) if found else empty
        return images, torch.tensor([c for _, c in found], dtype=torch.int64)

    return Dataset(str(folder), *tensors(train), *tensors(test), classes)


def _sides(folder: Path) -> tuple[Files, Files]:
    """The files to train and to test on."""
    inside = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_dir()}
    to_train, kept = inside.get("train"), [inside[name] for name in TEST_NAMES if name in inside]
    if to_train is None or not any(path.is_dir() for path in to_train.iterdir()):
        return _split(folder, _files(folder))
    if not kept:
        raise InputError(
            f"{to_train} has sub-folders, but {folder} has no folder to test on, called {', '.join(TEST_NAMES)}; add "
            f"one, or give {to_train} itself, of which a fifth is kept to test."
        )
    train, test = _files(to_train), _files(kept[0])
    unknown = sorted(set(test) - set(train))
    if unknown:
        raise InputError(f"{kept[0]} has the class {unknown[0]!r}, which {to_train} lacks.")
    return train, test


def _files(folder: Path) -> Files:
    """The image files of each class, all in order of their names; hidden ones are none."""
    found = {}
    for each in sorted(folder.iterdir()):
        if each.is_dir() and not each.name.startswith("."):
            found[each.name] = sorted(path for path in each.rglob("*") if _is_image(path, each))
            if not found[each.name]:
                raise InputError(f"the class folder {each} has no image in it; add some or remove it.")
    if not found:
        raise InputError(f"{folder} has no sub-folders; give a folder with a sub-folder of images for each class.")
    return found


def _is_image(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not hidden and path.suffix.lower() in SUFFIXES and path.is_file()


def _split(folder: Path, by_class: Files) -> tuple[Files, Files]:
    """About a fifth of each class to test, by a digest of each name: a file keeps its side when others come or go.

    A class has at least one file on each side, if it has two.
    """
    train, test = {}, {}
    for name, files in by_class.items():
        shares = {path: _share(path.relative_to(folder)) for path in files}
        order = sorted(files, key=shares.__getitem__)
        count = sum(share < TEST_SHARE for share in shares.values())
        count = min(max(count, 1), len(files) - 1)
        test[name], train[name] = sorted(order[:count]), sorted(order[count:])
    return train, test


def _share(path: Path) -> float:
    """A number from 0 to 1 that follows from the name."""
    return int.from_bytes(hashlib.sha256(path.as_posix().encode(errors="surrogateescape")).digest()[:8]) / 2**64


def _channels(paths: Sequence[Path]) -> int:
    """1 if all files that open as images are gray, else 3; nothing is decoded yet."""
    gray = []
    for path in paths:
        try:
            with Image.open(path, formats=FORMATS) as file:
                gray.append(file.mode.startswith(GRAY_MODES))
        except Exception:  # a damaged file makes Pillow raise almost anything; who reads it says so
            continue
    return 1 if gray and all(gray) else 3


def _read(paths: Sequence[Path], channels: int, on_unreadable: OnUnreadable, progress: Progress) -> dict[Path, Tensor]:
    found, reasons = {}, []
    for done, path in enumerate(paths, start=1):
        try:
            found[path] = read_image(path, (channels, SIDE, SIDE))[0]
        except InputError as error:
            reasons.append(str(error).partition(";")[0])
        progress("reading images", done, len(paths))
    if reasons:
        named = "; ".join(reasons[:NAMED]) + (f"; and {len(reasons) - NAMED} others" if len(reasons) > NAMED else "")
        if on_unreadable == "refuse":
            raise InputError(f'{named}. Fix or remove these files, or skip them with on_unreadable="skip".')
        for reason in reasons:
            logging.getLogger("apac").warning("skipped: %s.", reason)
    if not found:
        raise InputError("none of the files can be read as an image; give PNG or JPEG files.")
    return found
