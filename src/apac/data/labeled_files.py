"""The files of a folder as labeled images of a trained network, with their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from apac.data.folder import MAX_NAMED, OnUnreadable, _is_image, _read, _train_and_test
from apac.errors import InputError
from apac.progress import Progress, no_progress


@dataclass(frozen=True, eq=False)
class LabeledFiles:
    """The readable image files of one part of a folder, by class and then by name."""

    images: Tensor  # (N, C, H, W) uint8
    labels: Tensor  # (N,) int64, positions in the classes of the network
    names: tuple[str, ...]  # (N,) paths relative to the folder


@dataclass(frozen=True, eq=False)
class FolderParts:
    """The training files and the test files of a folder."""

    train: LabeledFiles
    test: LabeledFiles
    split_by_folders: bool  # into train/ and test/; otherwise a part of each class is the test part

    def all_files(self) -> LabeledFiles:
        """Return the files of both parts, by class and then by name."""
        images, labels = (torch.cat([getattr(self.train, n), getattr(self.test, n)]) for n in ("images", "labels"))
        names = self.train.names + self.test.names
        order = sorted(range(len(names)), key=lambda i: (int(labels[i]), names[i]))
        return LabeledFiles(images[order], labels[order], tuple(names[i] for i in order))


def read_parts(
    folder: Path,
    classes: Sequence[str],
    image_shape: tuple[int, int, int],
    *,
    digit: bool = False,
    test_only: bool = False,
    on_unreadable: OnUnreadable = "refuse",
    progress: Progress = no_progress,
) -> FolderParts:
    """Read a folder whose subfolders are named like some of the `classes`, as images of this shape.

    With `test_only`, and if the folder has the subfolders train and test, the training files are not read.
    """
    train, test = _train_and_test(folder)
    unknown = sorted((train.keys() | test.keys()) - set(classes))
    if unknown:
        raise InputError(
            f"{folder} has classes that the run does not have: {_some(unknown)}; it has {_some(classes)}. Rename or "
            f"remove these subfolders."
        )
    split_by_folders = any(path.relative_to(folder).parts[0] != name for name, paths in train.items() for path in paths)
    if test_only or split_by_folders:
        train = {}
    paths = [path for part in (train, test) for files in part.values() for path in files]
    images = _read(paths, image_shape, on_unreadable, progress, digit=digit)

    def labeled(files: dict[str, list[Path]]) -> LabeledFiles:
        found = [(path, c) for c, name in enumerate(classes) for path in files.get(name, []) if path in images]
        return LabeledFiles(
            torch.stack([images[path] for path, _ in found])
            if found
            else torch.empty(0, *image_shape, dtype=torch.uint8),
            torch.tensor([c for _, c in found], dtype=torch.int64),
            tuple(path.relative_to(folder).as_posix() for path, _ in found),
        )

    return FolderParts(labeled(train), labeled(test), split_by_folders)


def image_files(folder: Path) -> list[Path]:
    """Return the image files in a folder and its subfolders, sorted, without hidden files."""
    files = sorted(path for path in folder.rglob("*") if _is_image(path, folder))
    if not files:
        raise InputError(f"{folder} has no image files; give a folder of images, such as PNG or JPEG.")
    return files


def _some(names: Sequence[str]) -> str:
    others = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {others:,} others" if others > 0 else "")
