"""A few images of a run, a folder or files, to show what a deformation does to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from apac import data as data_sets
from apac.data.base import scale_pixels
from apac.data.folder import MAX_SIZE, read_headers
from apac.data.folder_files import find_files
from apac.data.image_file import Fit, read_image
from apac.deform import presets
from apac.deform.base import Deformation
from apac.errors import InputError
from apac.progress import Progress, no_progress
from apac.runs import folder as run_folder
from apac.runs.run import Run, load

MAX_IMAGES = 8


@dataclass(frozen=True, eq=False)
class Preview:
    """Images and the deformation to apply to them."""

    images: Tensor  # (N, C, H, W) float32 in 0 … 1
    labels: Tensor | None  # (N,), None if the classes are unknown
    names: tuple[str, ...]  # (N,) of the classes or the files
    deformation: Deformation


@dataclass(frozen=True)
class _Files:
    paths: Sequence[Path]
    labels: Sequence[int] | None
    names: tuple[str, ...]


def choose_images(
    sources: Sequence[Path],
    deformation: Deformation | None = None,
    *,
    size: int | None = None,
    fit: Fit | None = None,
    progress: Progress = no_progress,
) -> Preview:
    """Choose at most eight images of a run, of a folder with a subfolder per class, or of image files.

    Files after a run are prepared as the run does. The deformation defaults to that of the run, or to the default for
    folders; the size and the fit as for `train`.
    """
    first, *rest = sources
    if run_folder.holds_run(run_folder.find(first)):
        if size is not None or fit is not None:
            raise InputError("a run has its own size and fit; omit them, or give a folder or image files.")
        run = load(first)
        return _of_run(run, rest, run.deformation if deformation is None else deformation, progress)
    u = presets.photos() if deformation is None else deformation
    if not first.exists():
        raise InputError(f"there is no file or folder {first}; give a run, a folder of images by class, or images.")
    if first.is_dir():
        if rest:
            raise InputError("give one folder, one run and image files, or image files alone.")
        files, paths = _of_folder(first)
    else:
        files, paths = _of_files(sources), list(sources)
    headers = read_headers(paths)
    size = size or min(MAX_SIZE, headers.shorter_side)
    return _read(files, (headers.channels, size, size), fit or "crop", u)


def _of_run(run: Run, paths: Sequence[Path], deformation: Deformation, progress: Progress) -> Preview:
    digits = run.takes_digits
    if paths:
        return _read(_of_files(paths), run.image_shape, run.config.fit, deformation, digits=digits)
    if run.data is None:
        raise InputError("this run was trained on data in memory, which is not stored; give image files after it.")
    if run.data not in data_sets.NAMES:
        if not Path(run.data).is_dir():
            raise InputError(f"the images of the run are no longer in {run.data}; give image files after the run.")
        return _read(_of_folder(Path(run.data))[0], run.image_shape, run.config.fit, deformation)
    dataset = data_sets.load(run.data, progress=progress)
    labels = dataset.test_labels
    rows = torch.tensor([int((labels == c).nonzero()[0]) for c in range(min(MAX_IMAGES, len(dataset.classes)))])
    names = tuple(dataset.classes[int(label)] for label in labels[rows])
    return Preview(scale_pixels(dataset.test_images[rows]), labels[rows], names, deformation)


def _of_folder(folder: Path) -> tuple[_Files, list[Path]]:
    """Return the first readable files of each class, and all files."""
    files = find_files(folder)
    classes = list(files.train)
    each = max(1, MAX_IMAGES // len(classes))
    readable = (((path, c) for path in files.train[name] if _is_readable(path)) for c, name in enumerate(classes))
    labeled = [labeled for of_class in readable for labeled in islice(of_class, each)][:MAX_IMAGES]
    if not labeled:
        raise InputError(f"none of the images in {folder} can be read; give PNG or JPEG files.")
    names = tuple(classes[c] for _, c in labeled)
    paths = [path for part in (files.train, files.test) for by_class in part.values() for path in by_class]
    return _Files([path for path, _ in labeled], [c for _, c in labeled], names), paths


def _is_readable(path: Path) -> bool:
    try:
        read_image(path, (3, 8, 8))
    except InputError:
        return False
    return True


def _of_files(paths: Sequence[Path]) -> _Files:
    shown = paths[:MAX_IMAGES]
    return _Files(shown, None, _distinct_names(shown))


def _distinct_names(paths: Sequence[Path]) -> tuple[str, ...]:
    """Return the file names, with as many folders as tell files of one name apart."""
    for count in range(1, max(len(path.parts) for path in paths) + 1):
        names = tuple("/".join(path.parts[-count:]) for path in paths)
        if len(set(names)) == len(set(paths)):
            break
    return names


def _read(
    files: _Files, image_shape: tuple[int, int, int], fit: Fit, deformation: Deformation, *, digits: bool = False
) -> Preview:
    pixels = torch.stack([read_image(path, image_shape, fit=fit, digit=digits)[0] for path in files.paths])
    labels = None if files.labels is None else torch.tensor(files.labels)
    return Preview(scale_pixels(pixels), labels, files.names, deformation)
