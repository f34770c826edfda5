"""Image folders as data sets in memory; `apac.data.folder_files` describes the layout."""

from __future__ import annotations

import hashlib
import logging
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import torch
from PIL import Image
from torch import Tensor

from apac.data.base import Dataset
from apac.data.bounded_file import BoundedFile
from apac.data.cached import cached_files
from apac.data.folder_files import Files, FolderFiles, find_files
from apac.data.image_file import FORMATS, Fit, decode_image, without_warnings
from apac.data.mapped import StoredImages, take
from apac.data.streamed import streamed_files
from apac.errors import InputError
from apac.inference.workers import worker_pool
from apac.progress import Progress, no_progress

OnUnreadable = Literal["refuse", "skip"]

MAX_SIZE = 96  # pixels; larger images take long to train on, and are chosen by `size`
GRAY_MODES = ("1", "L", "LA", "La", "I", "F")  # and 16 bits: "I;16", "I;16B"
UNREADABLE = "unreadable"
MAX_NAMED = 5  # files listed in an error message


@dataclass(frozen=True)
class FolderSummary:
    """What was found in a folder."""

    files: FolderFiles
    unreadable: tuple[Path, ...]
    shorter_side: int  # median of the files, in pixels
    repeated: tuple[tuple[Path, Path], ...]  # (test file, training file) with the same pixels
    contradictory: tuple[tuple[Path, Path], ...]  # files of two classes with the same pixels

    @property
    def skipped(self) -> dict[str, list[Path]]:
        """The files that are not used, by reason."""
        unreadable = {UNREADABLE: list(self.unreadable)} if self.unreadable else {}
        return {**self.files.skipped, **unreadable}


@dataclass(frozen=True, eq=False)
class FolderDataset(Dataset):
    """The images of a folder, with the file of each."""

    train_files: tuple[Path, ...]  # (N,)
    test_files: tuple[Path, ...]  # (N',)
    summary: FolderSummary


def load(
    folder: Path,
    *,
    size: int | None = None,
    fit: Fit = "crop",
    channels: int | None = None,
    on_unreadable: OnUnreadable = "refuse",
    cache: Path | None = None,
    stream: bool = False,
    progress: Progress = no_progress,
) -> FolderDataset:
    """Load images as C × size × size, fitted as `read_image` does.

    The size defaults to the median of the shorter sides of the files, at most 96. C defaults to 1 if all files are
    gray, and to 3 otherwise. Files that cannot be read raise InputError, or are skipped with a warning in the log if
    `on_unreadable` is "skip". With the folder `cache`, the pixels are decoded into a file there, or read from it if
    the image files have not changed. With `stream`, they are decoded again whenever they are indexed.
    """
    files = find_files(folder)
    classes = tuple(files.train)
    if len(classes) < 2:
        raise InputError(f"{folder} has images of one class only, {classes[0]!r}; a classifier needs two or more.")
    parts = _parts(files)
    paths = [path for part in parts for path, _ in part]
    headers = read_headers(paths)
    size = size or min(MAX_SIZE, headers.shorter_side)
    shape = (channels or headers.channels, size, size)
    images: Tensor | StoredImages
    if stream:
        images, read = streamed_files(
            paths, shape, fit, lambda paths: decoded_files(paths, shape, fit, on_unreadable, progress)
        )
    elif cache is None:
        images, read = read_files(paths, shape, fit, on_unreadable, progress)
    else:
        images, found = cached_files(
            cache,
            folder.name,
            lambda: [path for part in _parts(find_files(folder)) for path, _ in part],
            shape,
            f"{fit}, {on_unreadable}",
            lambda paths: decoded_files(paths, shape, fit, on_unreadable, progress),
            progress,
        )
        read = torch.tensor(found.read)
    train, test = split_readable(parts, images, read)
    for c, name in enumerate(classes):
        if not (train.labels == c).any():
            raise InputError(f"the class {name!r} of {folder} has no readable image to train on; add some.")
    unreadable = tuple(path for path, readable in zip(paths, read.tolist(), strict=True) if not readable)
    with without_warnings():
        same = _same_pixels(train, test)
    return FolderDataset(
        str(folder),
        train.images,
        train.labels,
        test.images,
        test.labels,
        classes,
        train.files,
        test.files,
        FolderSummary(files, unreadable, headers.shorter_side, *same),
    )


def _parts(files: FolderFiles) -> list[list[tuple[Path, int]]]:
    """Return the files to train on and those to test on, with their labels."""
    return [labeled_paths(by_class, tuple(files.train)) for by_class in (files.train, files.test)]


def labeled_paths(by_class: Files, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """Return the files of the classes, each with the position of its class."""
    return [(path, c) for c, name in enumerate(classes) for path in by_class.get(name, [])]


@dataclass(frozen=True, eq=False)
class LabeledFiles:
    """The images of one part of a folder, with the file of each."""

    files: tuple[Path, ...]
    images: Tensor  # (N, C, H, W), or StoredImages
    labels: Tensor  # (N,)

    @staticmethod
    def readable(labeled: list[tuple[Path, int]], images: Any, read: Tensor) -> LabeledFiles:
        """Return the files that could be read."""
        kept = [pair for pair, readable in zip(labeled, read.tolist(), strict=True) if readable]
        labels = torch.tensor([label for _, label in kept], dtype=torch.int64)
        if isinstance(images, Tensor) and not read.all():  # otherwise without a copy
            images = images[read]
        return LabeledFiles(tuple(path for path, _ in kept), images, labels)


def split_readable(
    parts: Sequence[list[tuple[Path, int]]], images: Tensor | StoredImages, read: Tensor
) -> tuple[LabeledFiles, LabeledFiles]:
    """Divide images into those to train on and those to test on. Stored images are those that could be read."""
    count = len(parts[0])
    first = int(read[:count].sum()) if isinstance(images, StoredImages) else count
    return (
        LabeledFiles.readable(parts[0], take(images, slice(0, first)), read[:count]),
        LabeledFiles.readable(parts[1], take(images, slice(first, None)), read[count:]),
    )


@dataclass(frozen=True)
class Headers:
    """What the headers of image files tell together."""

    channels: int  # 1 if all images are gray, else 3
    shorter_side: int  # median, in pixels


def read_headers(paths: Sequence[Path]) -> Headers:
    """Read the headers of the files that can be read. The images are not decoded."""
    gray, sides = [], []
    with without_warnings():
        for path in paths:
            try:
                with path.open("rb") as content, _opened(content, path) as file:
                    gray.append(file.mode in GRAY_MODES or file.mode.startswith("I;"))
                    sides.append(min(file.size))
            except Exception:  # Pillow raises many kinds of exceptions for damaged files; `read_files` reports them
                continue
    return Headers(1 if gray and all(gray) else 3, int(statistics.median(sides)) if sides else MAX_SIZE)


def _opened(content: IO[bytes], path: Path) -> Image.Image:
    """Open an image as `decode_image` does: the header of a file may be endless."""
    return Image.open(BoundedFile(content, str(path)), formats=FORMATS)  # type: ignore[arg-type]


def read_files(
    paths: Sequence[Path],
    image_shape: tuple[int, int, int],
    fit: Fit,
    on_unreadable: OnUnreadable,
    progress: Progress,
    *,
    digit: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the images (N, C, H, W) uint8 and which of them could be read, (N,)."""
    try:
        images = torch.zeros(len(paths), *image_shape, dtype=torch.uint8)
    except RuntimeError as error:
        size = len(paths) * torch.Size(image_shape).numel() / 1e9
        raise InputError(
            f"{len(paths):,} images of {' × '.join(map(str, image_shape[1:]))} pixels do not fit into memory "
            f"({size:.0f} GB); use fewer or smaller ones, or train with stream=True."
        ) from error
    read = torch.ones(len(paths), dtype=torch.bool)
    for index, item in enumerate(decoded_files(paths, image_shape, fit, on_unreadable, progress, digit=digit)):
        if item is None:
            read[index] = False
        else:
            images[index] = item[0]
    return images, read


def decoded_files(
    paths: Sequence[Path],
    image_shape: tuple[int, int, int],
    fit: Fit,
    on_unreadable: OnUnreadable,
    progress: Progress,
    *,
    digit: bool = False,
) -> Iterator[tuple[Tensor, int] | None]:
    """Yield each image (C, H, W) uint8 with its position, or None if it cannot be read; the end reports those."""

    def decode(path: Path) -> Tensor | str:
        try:
            return decode_image(path, image_shape, fit=fit, digit=digit)[0]
        except InputError as error:
            return str(error).partition(";")[0]

    reasons = []
    with without_warnings(), worker_pool() as pool:
        for index, result in enumerate(pool.map(decode, paths)):
            if isinstance(result, str):
                reasons.append(result)
                yield None
            else:
                yield result, index
            progress("reading images", index + 1, len(paths))
    if reasons:
        others = len(reasons) - MAX_NAMED
        named = "; ".join(reasons[:MAX_NAMED]) + (f"; and {others} others" if others > 0 else "")
        if on_unreadable == "refuse":
            raise InputError(f'{named}. Fix or remove these files, or skip them with on_unreadable="skip".')
        for reason in reasons:
            logging.getLogger("apac").warning("skipped: %s.", reason)
    if len(reasons) == len(paths):
        raise InputError("none of the files can be read as an image; give PNG or JPEG files.")


def _same_pixels(
    train: LabeledFiles, test: LabeledFiles
) -> tuple[tuple[tuple[Path, Path], ...], tuple[tuple[Path, Path], ...]]:
    """Return pairs of a test and a training file, and pairs of files of two classes, that have the same pixels."""
    seen: dict[bytes, tuple[Path, int]] = {}
    repeated, contradictory = [], []
    for part in (train, test):
        for path, image, label in zip(part.files, part.images, part.labels.tolist(), strict=True):
            digest = hashlib.blake2b(image.numpy().data, digest_size=16).digest()
            other, other_label = seen.get(digest, (path, label))
            if other_label != label:
                contradictory.append((path, other))
            elif part is test and digest in seen:
                repeated.append((path, other))
            if part is train:
                seen.setdefault(digest, (path, label))
    return tuple(repeated), tuple(contradictory)
