"""A folder as labeled images of a trained network, whose classes and image shape are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from apac.data.folder import MAX_NAMED, LabeledFiles, OnUnreadable, labeled_paths, read_files, split_readable
from apac.data.folder_files import find_files
from apac.data.image_file import Fit
from apac.errors import InputError
from apac.progress import Progress, no_progress


@dataclass(frozen=True, eq=False)
class FolderParts:
    """The training files and the test files of a folder. Labels are positions in the classes of the network."""

    train: LabeledFiles  # empty if it was not read
    test: LabeledFiles
    split_by_folders: bool  # into train/ and test/; otherwise a part of each class is the test part

    def all_files(self) -> LabeledFiles:
        """Return the files of both parts, by class and then by name."""
        images, labels = (torch.cat([getattr(self.train, n), getattr(self.test, n)]) for n in ("images", "labels"))
        files = self.train.files + self.test.files
        order = sorted(range(len(files)), key=lambda i: (int(labels[i]), files[i]))
        return LabeledFiles(tuple(files[i] for i in order), images[order], labels[order])


def read_parts(
    folder: Path,
    classes: Sequence[str],
    image_shape: tuple[int, int, int],
    *,
    fit: Fit = "crop",
    digit: bool = False,
    test_only: bool = False,
    on_unreadable: OnUnreadable = "refuse",
    progress: Progress = no_progress,
) -> FolderParts:
    """Read a folder whose subfolders are named like some of the `classes`, as images of this shape.

    The training files are not read with `test_only`, nor if the folder has the subfolders train and test.
    """
    found = find_files(folder)
    unknown = sorted((found.train.keys() | found.test.keys()) - set(classes))
    if unknown:
        raise InputError(
            f"{folder} has classes that the run does not have: {_some(unknown)}; it has {_some(classes)}. Rename or "
            f"remove these subfolders."
        )
    split_by_folders = found.test_folder is not None
    train = {} if test_only or split_by_folders else found.train
    parts = [labeled_paths(by_class, classes) for by_class in (train, found.test)]
    paths = [path for part in parts for path, _ in part]
    images, read = read_files(paths, image_shape, fit, on_unreadable, progress, digit=digit)
    return FolderParts(*split_readable(parts, images, read), split_by_folders)


def _some(names: Sequence[str]) -> str:
    others = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {others:,} others" if others > 0 else "")
