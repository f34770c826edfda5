"""Image files as inputs of a classifier, and their decisions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from apac import limits
from apac.classify.decision import Decision
from apac.data.folder_files import image_files
from apac.data.image_file import Fit, read_image
from apac.data.normalize import Identity, Normalization
from apac.errors import InputError
from apac.validation import shortened


@dataclass(frozen=True, eq=False)
class ReadImages:
    """The pixels of the readable files, and the reasons why the others are unreadable."""

    paths: tuple[Path, ...]  # (N,)
    images: Tensor  # (N, C, H, W) uint8
    notes: tuple[tuple[str, ...], ...]  # (N,)
    unreadable: dict[Path, str]


@dataclass(frozen=True, eq=False)
class ClassifiedImages:
    """The decision for N image files."""

    paths: tuple[Path, ...]  # (N,) the files that were read, in order
    decision: Decision  # for these N images
    classes: tuple[str, ...]  # (K,)
    notes: tuple[tuple[str, ...], ...]  # (N,) how each image was converted, such as "resized from 300 × 260"
    unreadable: dict[Path, str]  # the other files, with reasons
    plain: bool = False  # whether one pass of the undeformed image decided

    @property
    def labels(self) -> tuple[str | None, ...]:
        """The class name of each image; None if the network returned NaN."""
        return tuple(self.classes[label] if label >= 0 else None for label in self.decision.labels.tolist())


def check_reads_files(normalization: Normalization) -> None:
    """Raise InputError for a run that was not trained on pixels."""
    if isinstance(normalization, Identity):
        raise InputError(
            "this run was trained on float images and cannot prepare image files; prepare them like the training data, "
            "and use run.classifier().decide(images)."
        )


def list_files(paths: Sequence[str | os.PathLike[str]]) -> tuple[list[Path], dict[Path, str]]:
    """Return the files of the paths, and the folders that cannot be listed, with reasons.

    A folder stands for the image files in it and in its subfolders.
    """
    files: list[Path] = []
    unreadable: dict[Path, str] = {}
    for path in map(Path, paths):
        try:
            files += image_files(path) if path.is_dir() else [path]
        except InputError as error:
            unreadable[path] = str(error)
        except OSError as error:
            unreadable[path] = f"{shortened(path)} cannot be read: {error.strerror or error}; give another path."
    return files, unreadable


def read_images(
    files: Sequence[Path],
    image_shape: tuple[int, int, int],
    *,
    fit: Fit = "crop",
    digits: bool = False,
    max_pixels: int = limits.PIXELS,
) -> ReadImages:
    """Read image files as the pixels of a network's input (C, H, W); digits are converted to the format of MNIST."""
    read: list[tuple[Path, Tensor, tuple[str, ...]]] = []
    unreadable: dict[Path, str] = {}
    for path in files:
        try:
            read.append((path, *read_image(path, image_shape, fit=fit, digit=digits, max_pixels=max_pixels)))
        except InputError as error:
            unreadable[path] = str(error)
    images = torch.stack([image for _, image, _ in read]) if read else torch.empty(0, *image_shape, dtype=torch.uint8)
    return ReadImages(tuple(path for path, _, _ in read), images, tuple(notes for _, _, notes in read), unreadable)
