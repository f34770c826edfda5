"""The files of an image folder: which are images of a class, to train or to test on, and which are not used and why.

The layout is FOLDER/CLASS/image.jpg, where about a fifth of each class is held out for testing; or
FOLDER/train/CLASS/... and FOLDER/test/CLASS/... (or val, valid, validation), which define the split.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from apac.data.image_file import HEIC_SUFFIXES, READS_AVIF
from apac.errors import InputError

Files = dict[str, list[Path]]  # by the name of a class or by a reason

TEST_FRACTION = 0.2
TEST_NAMES = ("test", "val", "valid", "validation")
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pnm"}
# Images in formats that are not read, by suffix.
OTHER_FORMATS = {
    **dict.fromkeys(HEIC_SUFFIXES, "HEIC"),
    **dict.fromkeys((".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2", ".pef", ".srw"), "raw camera"),
    **dict.fromkeys((".jp2", ".j2k", ".jpx"), "JPEG 2000"),
    ".avif": "AVIF",
    ".jxl": "JPEG XL",
    ".svg": "SVG",
    ".pdf": "PDF",
    ".psd": "Photoshop",
}
if READS_AVIF:
    SUFFIXES.add(".avif")
    del OTHER_FORMATS[".avif"]
# Why other files are skipped.
HIDDEN = "hidden"
NO_IMAGE = "not an image"
OUTSIDE = "outside of the class folders"


@dataclass(frozen=True)
class FolderFiles:
    """The image files of a folder, by class, and everything else in it."""

    train: Files
    test: Files
    test_folder: Path | None  # None if a part of each class is held out
    skipped: Files  # by reason
    unused: dict[Path, int]  # folders beside train and test, with their numbers of images


def find_files(folder: Path) -> FolderFiles:
    """Find the images to train and to test on. No file is opened."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; give a folder with a subfolder of images for each class.")
    skipped: Files = defaultdict(list)
    subfolders = _subfolders(folder, skipped)
    by_name = {path.name.lower(): path for path in subfolders}
    train_folder = by_name.get("train")
    test_folders = [by_name[name] for name in TEST_NAMES if name in by_name]
    if train_folder is None or not _has_folders(train_folder):
        for path in filter(_has_folders, test_folders):
            raise InputError(
                f"{path} has subfolders, but {folder} has no folder train with subfolders; add one, or rename "
                f"{path.name} if it is a class."
            )
        files = _by_class(folder, subfolders, skipped)
        return FolderFiles(*_split(folder, files), None, skipped, {})
    if not test_folders:
        raise InputError(
            f"{train_folder} has subfolders, but {folder} has no test folder ({', '.join(TEST_NAMES)}); add one, or "
            f"give {train_folder} itself, of which about a fifth is held out for testing."
        )
    test_folder = test_folders[0]
    train, test = (_by_class(path, _subfolders(path, skipped), skipped) for path in (train_folder, test_folder))
    for name in sorted(set(test) - set(train)):
        similar = next((other for other in train if other.casefold() == name.casefold()), None)
        remedy = "add it there, or remove it" if similar is None else f"rename it to {similar!r}"
        raise InputError(f"{test_folder} has the class {name!r}, which {train_folder} does not have; {remedy}.")
    unused = {path: _count_images(path) for path in subfolders if path not in (train_folder, test_folder)}
    return FolderFiles(train, test, test_folder, skipped, unused)


def image_files(folder: Path) -> list[Path]:
    """Return the image files in a folder and its subfolders, sorted, whatever its layout.

    Those in formats that cannot be read are included, so that reading them says why they are skipped.
    """
    files = [path for path in _walk(folder) if _reason(path) not in (HIDDEN, NO_IMAGE)]
    if not files:
        raise InputError(f"{folder} has no image files; give a folder of images, such as PNG or JPEG.")
    return files


def _has_folders(folder: Path) -> bool:
    return any(path.is_dir() and not _is_hidden(path) for path in folder.iterdir())


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".")


def _subfolders(folder: Path, skipped: Files) -> list[Path]:
    """Return the subfolders, whose names must differ by more than case, and note the other files."""
    folders = []
    for path in sorted(folder.iterdir()):
        if _is_hidden(path):
            skipped[HIDDEN].append(path)
        elif path.is_dir():
            folders.append(path)
        else:
            reason = _reason(path)
            skipped[OUTSIDE if reason is None else reason].append(path)
    names: dict[str, str] = {}
    for path in folders:
        other = names.setdefault(path.name.casefold(), path.name)
        if other != path.name:
            raise InputError(
                f"{folder} has the folders {other!r} and {path.name!r}, which differ only by case; merge them, or "
                f"rename one of them."
            )
    return folders


def _by_class(folder: Path, subfolders: list[Path], skipped: Files) -> Files:
    """Return the image files of each class, sorted by name, and note the others."""
    files: Files = {}
    for subfolder in subfolders:
        images: list[Path] = []
        others: Files = defaultdict(list)
        for path in _walk(subfolder):
            reason = _reason(path)
            (images if reason is None else others[reason]).append(path)
        if not images:
            found = ", ".join(f"{len(paths)} {reason}" for reason, paths in others.items())
            raise InputError(
                f"the class folder {subfolder} has no images that can be read{f' ({found})' if found else ''}; add PNG "
                f"or JPEG files, or remove it."
            )
        files[subfolder.name] = images
        for reason, paths in others.items():
            skipped[reason] += paths
    if not files:
        raise InputError(f"{folder} has no subfolders; give a folder with a subfolder of images for each class.")
    return files


def _walk(folder: Path) -> list[Path]:
    """Return the files in a folder and its subfolders, sorted. A hidden subfolder is returned as one file."""
    found = []
    for parent, folders, files in os.walk(folder):
        hidden = [name for name in folders if name.startswith(".")]
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(parent, name) for name in (*files, *hidden)]
    return sorted(found)


def _reason(path: Path) -> str | None:
    """Return why a file is not used, or None for an image."""
    if _is_hidden(path):
        return HIDDEN
    suffix = path.suffix.lower()
    if suffix in SUFFIXES and path.is_file():
        return None
    return OTHER_FORMATS.get(suffix, NO_IMAGE)


def _count_images(folder: Path) -> int:
    return sum(_reason(path) is None for path in _walk(folder))


def _split(folder: Path, by_class: Files) -> tuple[Files, Files]:
    """Hold out about a fifth of each class for testing, chosen by a hash of the file name.

    A file stays in its part when other files are added or removed, unless its class has so few that none, or all of
    them, would be chosen: a class with two or more files has at least one file in each part.
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
