"""A small data set and a run on it, trained once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import apac
from apac import data
from apac.data.base import Dataset

CONFIG = apac.TrainConfig(epochs=1, batch_size=40, seed=1)


@pytest.fixture(scope="session")
def small() -> Dataset:
    """A subset of mnist-5k with the same name."""
    whole = data.load("mnist-5k")
    return replace(
        whole,
        train_images=whole.train_images[::10],
        train_labels=whole.train_labels[::10],
        test_images=whole.test_images[::10],
        test_labels=whole.test_labels[::10],
    )


@pytest.fixture(scope="session")
def trained(small: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run. Tests that change it take a `copy`."""
    folder = tmp_path_factory.mktemp("runs") / "cnn"
    apac.train("mnist-cnn", small, config=CONFIG, out=folder)
    return folder


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Iterator[Path]:
    yield Path(shutil.copytree(trained, tmp_path / "copy"))
