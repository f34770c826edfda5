"""Conversion of the data that `train` accepts to a Dataset."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from apac import data as data_sets
from apac.data.base import Dataset, check_images, check_labels
from apac.data.cached import cached_items
from apac.data.folder import load as load_folder
from apac.data.image_file import Fit
from apac.data.items import ItemReader, read_items, streamed_items
from apac.data.mapped import take
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

    The items of a torch Dataset are read by `workers` processes, into memory or the cache or for every batch.
    """
    is_name = isinstance(data, str | os.PathLike) and data_name(data) in data_sets.NAMES
    if stream and (cache is not None or is_name or isinstance(data, Dataset) or _is_pair(data)):
        raise InputError(
            "stream=True reads a folder or a torch Dataset again for every batch; omit it for other data, or the cache."
        )
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 0:
        raise InputError(f"workers must be an integer of at least 0, got {workers!r}.")
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
        return _from_items(data, cache, workers, progress, stream=stream)
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


def _from_tensors(images: Any, labels: Any) -> Dataset:
    images = _to_tensor(images, "images must be uint8 or floating-point (N, C, H, W)")
    labels = _to_tensor(labels, "labels must be integers, one per image")
    check_images(images)
    if not len(images):
        raise InputError("images must hold at least one image to train on.")
    check_labels(labels, len(images))
    return Dataset("", images, labels, images[:0], labels[:0], _classes(labels, None))


def _classes(labels: Tensor, names: tuple[str, ...] | None) -> tuple[str, ...]:
    count = int(labels.max()) + 1
    if int(labels.min()) < 0 or count < 2:
        raise InputError(f"labels must be 0 … K − 1 for K ≥ 2 classes, got {int(labels.min())} … {count - 1}.")
    return names if names is not None and len(names) >= count else tuple(map(str, range(count)))


def _from_items(dataset: Any, cache: Path | None, workers: int, progress: Progress, *, stream: bool) -> Dataset:
    """Load a torch Dataset. Its random transforms are applied only once, and refused if it is streamed."""
    images: Any
    if cache is not None:
        images, found = cached_items(cache, dataset, workers, progress)
        labels = torch.tensor(found.labels)
    elif stream:
        images, numbers = streamed_items(ItemReader(dataset), workers, progress)
        labels = torch.tensor(numbers)
    else:
        reader = ItemReader(dataset)
        images = torch.empty(len(reader), *reader.image_shape, dtype=reader.dtype)
        labels = torch.empty(len(reader), dtype=torch.int64)
        for index, (image, label) in enumerate(read_items(reader, workers, progress)):
            images[index], labels[index] = image, label
    classes = _classes(labels, _class_names(dataset))
    return Dataset("", images, labels, take(images, slice(0)), labels[:0], classes)


def _class_names(dataset: Any) -> tuple[str, ...] | None:
    """Return the names of the classes, if the dataset tells them; equal ones, as ImageNet has, with their numbers."""
    classes = getattr(dataset, "classes", None)
    if not isinstance(classes, list | tuple):
        return None
    counts = Counter(map(str, classes))
    return tuple(f"{name} ({number})" if counts[str(name)] > 1 else str(name) for number, name in enumerate(classes))
