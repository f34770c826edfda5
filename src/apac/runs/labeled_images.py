"""The images on which a run is evaluated, and those on which it is tuned.

It is evaluated on the test images of its own data, or on other data with the same classes, and tuned on the training
images that it held out.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from apac import data as data_sets
from apac import limits
from apac.data.base import Dataset
from apac.data.folder import FolderDataset
from apac.data.folder_parts import FolderParts, read_parts
from apac.errors import InputError
from apac.progress import Progress, no_progress
from apac.runs import folder as run_folder
from apac.runs.classified import check_reads_files
from apac.runs.run import Run
from apac.runs.split import split_images, split_positions
from apac.runs.training_data import data_name, load_data
from apac.validation import shortened


@dataclass(frozen=True, eq=False)
class LabeledImages:
    """The images and labels to evaluate or to tune a run on."""

    images: Tensor  # (N, C, H, W), normalized
    labels: Tensor  # (N,) int64, positions in the classes of the run
    files: tuple[str, ...]  # (N,) relative to the folder; empty for a data set without files
    data: str  # the name of the data set, or the absolute path of the folder
    own: bool  # whether these belong to the data on which the run was trained


def images_to_test(
    run: Run,
    data: str | os.PathLike[str] | None = None,
    *,
    on_unreadable: Literal["refuse", "skip"] | None = None,
    progress: Progress = no_progress,
) -> LabeledImages:
    """Return the test images of a run's data, or of other `data`: the name of a data set, or a folder.

    Classes are matched by name; some of them may be missing. The test images of another folder are those in its
    subfolder test, if it has the subfolders train and test, and otherwise all of its images. If the images are those
    on which the run was trained, in a folder that was moved, they are the held-out part. `on_unreadable` defaults to
    that of the training.
    """
    if data is None and run.data is None:
        raise InputError(
            "this run was trained on data in memory, which is not stored; pass data=, or evaluate it with "
            "apac.evaluate."
        )
    name = run.data if data is None else data_name(data)
    assert name is not None
    if name in data_sets.NAMES:
        return _of_data_set(run, name, progress)
    if data is None and not os.path.isdir(name):  # unlike Path.is_dir, it takes names of any length
        raise InputError(
            f"there is no folder {shortened(name, limits.QUOTED_TEXT)}, on which this run was trained; if it was "
            f"moved, pass data=."
        )
    check_reads_files(run.normalization)
    own = name == run.data
    parts = read_parts(
        Path(name),
        run.classes,
        run.image_shape,
        fit=run.config.fit,
        digit=run.takes_digits,
        test_only=own,
        on_unreadable=on_unreadable or run.config.on_unreadable,
        progress=progress,
    )
    own = own or _are_training_images(run, parts)
    found = parts.test if own or parts.split_by_folders else parts.all_files()
    if not len(found.images):
        raise InputError(f"{shortened(name, limits.QUOTED_TEXT)} has no images to test on; add some to each class.")
    files = tuple(path.relative_to(name).as_posix() for path in found.files)
    return LabeledImages(run.normalize(found.images), found.labels, files, name, own)


def images_held_out(
    run: Run, *, data: str | os.PathLike[str] | None = None, progress: Progress = no_progress
) -> LabeledImages:
    """Return the training images that a run held out by `validation_fraction`: neither for training nor for testing.

    `data` is the folder of the training images, if it was moved.
    """
    if run.data is None:
        raise InputError(
            "this run was trained on data in memory, which is not stored, so its held-out images are unknown; pass "
            "images that it was not trained on to apac.tune."
        )
    if not run.config.validation_fraction:
        raise InputError(
            "this run held out no training images (validation_fraction=0); train it again with "
            "validation_fraction=0.1, or pass images that it was not trained on to apac.tune."
        )
    name = run.data if data is None else data_name(data)
    assert name is not None
    if name != run.data and (name in data_sets.NAMES or run.data in data_sets.NAMES):
        raise InputError(
            f"the held-out images of this run belong to its training data, "
            f"{shortened(run.data, limits.QUOTED_TEXT)}; omit data={shortened(name, limits.QUOTED_TEXT)}."
        )
    if name not in data_sets.NAMES and not os.path.isdir(name):
        known = f"there is no folder {shortened(name, limits.QUOTED_TEXT)}"
        if data is None:
            raise InputError(f"{known}, on which this run was trained; if it was moved, pass data=.")
        raise InputError(f"{known}; to say where the training images of this run are now, pass data=.")
    channels, size, _ = run.image_shape
    dataset = load_data(
        name,
        size=size,
        fit=run.config.fit,
        channels=channels,
        on_unreadable=run.config.on_unreadable,
        progress=progress,
    )
    split = split_images(dataset, run.config)
    if not len(split.held_out_images):
        raise InputError(
            f"this run held out none of {len(split.images):,} training images "
            f"(validation_fraction={run.config.validation_fraction:g}); train it again with a larger one, or pass "
            f"images that it was not trained on to apac.tune."
        )
    changed = run.folder is not None and not run_folder.may_have_been_trained_on(run.folder, split.digest)
    if split.classes != run.classes or changed:
        cause = "has changed since this run was trained on it"
        if name != run.data:
            cause = "does not have the images on which this run was trained"
        raise InputError(
            f"{name} {cause}, so its held-out images are unknown; pass images that it was not trained on to apac.tune."
        )
    files: tuple[str, ...] = ()
    if isinstance(dataset, FolderDataset):
        held_out, _ = split_positions(len(dataset.train_images), run.config)
        files = tuple(dataset.train_files[i].relative_to(name).as_posix() for i in held_out.tolist())
    return LabeledImages(run.normalize(split.held_out_images), split.held_out_labels, files, name, own=True)


def _of_data_set(run: Run, name: str, progress: Progress) -> LabeledImages:
    dataset = load_data(name, progress=progress)
    unknown = [c for c in dataset.classes if c not in run.classes]
    if unknown:
        raise InputError(
            f"the data set {name} has classes that the run does not have: {', '.join(unknown)}; choose other data."
        )
    positions = torch.tensor([run.classes.index(c) for c in dataset.classes])
    images = run.normalize(dataset.test_images)
    return LabeledImages(images, positions[dataset.test_labels], (), name, name == run.data)


def _are_training_images(run: Run, parts: FolderParts) -> bool:
    """Return whether the training part of a folder is what the run was trained on."""
    if run.folder is None or run.data in (None, *data_sets.NAMES) or parts.split_by_folders:
        return False
    train, test = parts.train, parts.test
    dataset = Dataset("", train.images, train.labels, test.images, test.labels, run.classes)
    with suppress(InputError):  # raised if no image of a class is left
        return run_folder.was_trained_on(run.folder, split_images(dataset, run.config).digest)
    return False
