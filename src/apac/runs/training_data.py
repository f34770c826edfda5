"""Conversion of the data that `train` accepts to a Dataset in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from apac import data as data_sets
from apac.data.base import Dataset, check_images, check_labels
from apac.data.cached import cached_items, image_tensor
from apac.data.folder import load as load_folder
from apac.data.image_file import Fit
from apac.errors import InputError
from apac.progress import Progress, no_progress


def data_name(data: Any) -> str | None:
    """Return the name of a data set, the absolute path of a folder, or None for data in memory.

    An `apac.Dataset` with the name of a known data set, for example a subset of MNIST, is identified by that name.
    """
    if isinstance(data, Dataset):
        return data.name if data.name in data_sets.NAMES else None
    if not isinstance(data, str | os.PathLike):
        return None
    name = os.fspath(data)
    if name in data_sets.NAMES:
        return name
    path = os.path.abspath(os.path.expanduser(name))
    if not name or not (os.path.isabs(name) or os.path.isdir(path)):  # the folder may have been removed
        raise InputError(f"there is no data set {name!r}; choose one of {', '.join(data_sets.NAMES)}, or a folder.")
    return path


def load_data(
    data: Any,
    *,
    size: int | None = None,
    fit: Fit = "crop",
    channels: int | None = None,
    on_unreadable: Literal["refuse", "skip"] = "refuse",
    cache: Path | None = None,
    stream: bool = False,
    workers: int = 0,
    progress: Progress = no_progress,
) -> Dataset:
    """Load the images and labels. The options up to `stream` are those of `apac.data.folder.load`.

    The items of a torch Dataset are read into the cache by `workers` processes.
    """
    is_folder = isinstance(data, str | os.PathLike) and data_name(data) not in data_sets.NAMES
    if stream and (cache is not None or not is_folder):
        raise InputError("stream=True decodes the files of a folder for every batch; omit it, or the cache.")
    if isinstance(data, Dataset):
        return data
    if isinstance(data, str | os.PathLike):
        name = data_name(data)
        assert name is not None
        if name in data_sets.NAMES:
            return data_sets.load(name, progress=progress)
        return load_folder(
            Path(name),
            size=size,
            fit=fit,
            channels=channels,
            on_unreadable=on_unreadable,
            cache=cache,
            stream=stream,
            progress=progress,
        )
    if _is_pair(data):
        return _from_tensors(*data)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return _from_torch(data, progress) if cache is None else _from_cache(data, cache, workers, progress)
    raise InputError(
        f"data must be a name, a folder, a pair (images, labels), an apac.Dataset or a map-style torch Dataset, got "
        f"{type(data).__name__}."
    )


def _is_pair(data: Any) -> bool:
    """Return whether data are (images, labels). A list of two (image, label) is a dataset of two images."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    return isinstance(data, tuple) or isinstance(data[0], Tensor | np.ndarray)


def _to_tensor(values: Any, expected: str) -> Tensor:
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"{expected}, got a {type(values).__name__} that is not a tensor: {reason}.") from error


def _from_tensors(images: Any, labels: Any, names: tuple[str, ...] | None = None) -> Dataset:
    images = _to_tensor(images, "images must be uint8 or floating-point (N, C, H, W)")
    labels = _to_tensor(labels, "labels must be integers, one per image")
    check_images(images)
    if not len(images):
        raise InputError("images must hold at least one image to train on.")
    check_labels(labels, len(images))
    return Dataset("", images, labels, images[:0], labels[:0], _classes(labels, names))


def _classes(labels: Tensor, names: tuple[str, ...] | None) -> tuple[str, ...]:
    count = int(labels.max()) + 1
    if int(labels.min()) < 0 or count < 2:
        raise InputError(f"labels must be 0 … K − 1 for K ≥ 2 classes, got {int(labels.min())} … {count - 1}.")
    return names if names is not None and len(names) >= count else tuple(map(str, range(count)))


def _from_torch(dataset: Any, progress: Progress) -> Dataset:
    """Read every item once; random transforms of the dataset are applied only once."""
    images: list[Tensor] = []
    labels: list[int] = []
    for index in range(len(dataset)):
        try:
            image, label = dataset[index]
            images.append(image_tensor(image))
            labels.append(int(label))
        except Exception as error:  # a dataset of the caller may raise anything
            reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise InputError(f"item {index} of the dataset is not a pair (image, label): {reason}.") from error
        progress("reading images", index + 1, len(dataset))
    shapes = {(tuple(image.shape), image.dtype) for image in images}
    if len(shapes) != 1:
        raise InputError(f"the images of a dataset must have one shape and type, got {len(shapes)}; resize them.")
    return _from_tensors(torch.stack(images), torch.tensor(labels), _class_names(dataset))


def _from_cache(dataset: Any, cache: Path, workers: int, progress: Progress) -> Dataset:
    images: Any
    images, found = cached_items(cache, dataset, workers, progress)
    labels = torch.tensor(found.labels)
    classes = _classes(labels, _class_names(dataset))
    return Dataset("", images, labels, images.subset(labels[:0]), labels[:0], classes)


def _class_names(dataset: Any) -> tuple[str, ...] | None:
    classes = getattr(dataset, "classes", None)
    return tuple(map(str, classes)) if isinstance(classes, list | tuple) else None
