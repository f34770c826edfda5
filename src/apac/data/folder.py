"""Image folders with one subfolder per class.

The layout is FOLDER/CLASS/image.jpg, where about a fifth of each class is held out for testing; or
FOLDER/train/CLASS/... and FOLDER/test/CLASS/... (or val, valid, validation), which define the split.
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
Files = dict[str, list[Path]]  # by class name

SIDE = 32  # pixels, the input size of the paper's CIFAR-10 networks
TEST_FRACTION = 0.2
TEST_NAMES = ("test", "val", "valid", "validation")
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pnm"}
GRAY_MODES = ("1", "L", "LA", "I", "F")
MAX_NAMED = 5  # files listed in an error message


def load(
    folder: Path,
    *,
    on_unreadable: OnUnreadable = "refuse",
    channels: int | None = None,
    progress: Progress = no_progress,
) -> Dataset:
    """Load images of any size as C × 32 × 32: each is center-cropped and resized.

    C defaults to 1 if all files are gray, and to 3 otherwise. Files that cannot be read raise InputError, or are
    skipped with a warning in the log if `on_unreadable` is "skip".
    """
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; give a folder with a subfolder of images for each class.")
    train, test = _train_and_test(folder)
    classes = tuple(train)
    if len(classes) < 2:
        raise InputError(f"{folder} has images of one class only, {classes[0]!r}; a classifier needs two or more.")
    paths = [path for part in (train, test) for files in part.values() for path in files]
    images = _read(paths, (channels or _channels(paths), SIDE, SIDE), on_unreadable, progress)
    for name in classes:
        if not any(path in images for path in train[name]):
            raise InputError(f"the class {name!r} of {folder} has no readable image to train on; add some.")

    def tensors(files: Files) -> tuple[Tensor, Tensor]:
        labeled = [
            (images[path], c) for c, name in enumerate(classes) for path in files.get(name, []) if path in images
        ]
        empty = torch.empty(0, *next(iter(images.values())).shape, dtype=torch.uint8)
        stacked = torch.stack([image for image, _ in labeled]) if labeled else empty
        return stacked, torch.tensor([c for _, c in labeled], dtype=torch.int64)

    return Dataset(str(folder), *tensors(train), *tensors(test), classes)


def _train_and_test(folder: Path) -> tuple[Files, Files]:
    """Return the training files and the test files."""
    subfolders = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_dir()}
    train_folder = subfolders.get("train")
    test_folders = [subfolders[name] for name in TEST_NAMES if name in subfolders]
    if train_folder is None or not any(path.is_dir() for path in train_folder.iterdir()):
        return _split(folder, _files(folder))
    if not test_folders:
        raise InputError(
            f"{train_folder} has subfolders, but {folder} has no test folder ({', '.join(TEST_NAMES)}); add one, or "
            f"give {train_folder} itself, of which a fifth is held out for testing."
        )
    train, test = _files(train_folder), _files(test_folders[0])
    unknown = sorted(set(test) - set(train))
    if unknown:
        raise InputError(f"{test_folders[0]} has the class {unknown[0]!r}, which {train_folder} does not have.")
    return train, test


def _files(folder: Path) -> Files:
    """Return the image files of each class, sorted by name, without hidden files."""
    files = {}
    for subfolder in sorted(folder.iterdir()):
        if subfolder.is_dir() and not subfolder.name.startswith("."):
            files[subfolder.name] = sorted(path for path in subfolder.rglob("*") if _is_image(path, subfolder))
            if not files[subfolder.name]:
                raise InputError(f"the class folder {subfolder} has no images; add some or remove it.")
    if not files:
        raise InputError(f"{folder} has no subfolders; give a folder with a subfolder of images for each class.")
    return files


def _is_image(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not hidden and path.suffix.lower() in SUFFIXES and path.is_file()


def _split(folder: Path, by_class: Files) -> tuple[Files, Files]:
    """Hold out about a fifth of each class for testing, chosen by a hash of the file name.

    A file stays in its part when other files are added or removed. A class with two or more files has at least one file
    in each part.
    """
    train, test = {}, {}
    for name, files in by_class.items():
        fractions = {path: _fraction(path.relative_to(folder)) for path in files}
        order = sorted(files, key=fractions.__getitem__)
        count = sum(fraction < TEST_FRACTION for fraction in fractions.values())
        count = min(max(count, 1), len(files) - 1)
        test[name], train[name] = sorted(order[:count]), sorted(order[count:])
    return train, test


def _fraction(path: Path) -> float:
    """Return a number in [0, 1) that depends only on the path."""
    return int.from_bytes(hashlib.sha256(path.as_posix().encode(errors="surrogateescape")).digest()[:8]) / 2**64


def _channels(paths: Sequence[Path]) -> int:
    """Return 1 if all readable images are gray, else 3. The images are not decoded."""
    gray = []
    for path in paths:
        try:
            with Image.open(path, formats=FORMATS) as file:
                gray.append(file.mode.startswith(GRAY_MODES))
        except Exception:  # Pillow raises many kinds of exceptions for damaged files; `_read` reports them
            continue
    return 1 if gray and all(gray) else 3


def _read(
    paths: Sequence[Path],
    image_shape: tuple[int, int, int],
    on_unreadable: OnUnreadable,
    progress: Progress,
    *,
    digit: bool = False,
) -> dict[Path, Tensor]:
    images, reasons = {}, []
    for done, path in enumerate(paths, start=1):
        try:
            images[path] = read_image(path, image_shape, digit=digit)[0]
        except InputError as error:
            reasons.append(str(error).partition(";")[0])
        progress("reading images", done, len(paths))
    if reasons:
        others = len(reasons) - MAX_NAMED
        named = "; ".join(reasons[:MAX_NAMED]) + (f"; and {others} others" if others > 0 else "")
        if on_unreadable == "refuse":
            raise InputError(f'{named}. Fix or remove these files, or skip them with on_unreadable="skip".')
        for reason in reasons:
            logging.getLogger("apac").warning("skipped: %s.", reason)
    if not images:
        raise InputError("none of the files can be read as an image; give PNG or JPEG files.")
    return images
