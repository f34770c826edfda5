"""A run, an image file and a small data set for the tests of the commands."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from apac import data
from apac.data.base import Dataset
from commands import succeed


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "cnn"
    succeed("train", "--out", folder, "--epochs", 2, "--batch-size", 50, "--schedule", "cosine")
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A writable copy of the run."""
    return Path(shutil.copytree(trained, tmp_path / "cnn"))


@pytest.fixture(scope="session")
def digit(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A test digit as a user might provide it, large and dark on white in a PNG file, and its class."""
    dataset = data.load("mnist-5k")
    index = int((dataset.test_labels == 0).nonzero()[0])
    pixels = Image.fromarray(255 - dataset.test_images[index, 0].numpy()).resize((180, 180), Image.Resampling.BICUBIC)
    canvas = Image.new("L", (300, 260), 255)
    canvas.paste(pixels, (60, 30))
    path = tmp_path_factory.mktemp("images") / "digit.png"
    canvas.save(path)
    return path, "0"


@pytest.fixture
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not draw the figures of apac evaluate, which takes longer than the rest of the command."""
    for name in ("confusion.confusion_matrix", "probabilities.reliability", "probabilities.risk_coverage"):
        monkeypatch.setattr(f"apac.reporting.figures.{name}", lambda *arguments: b"figure")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """A tenth of the training images and a fifth of the test images, under every name."""
    whole = data.load("mnist-5k")
    part = replace(
        whole,
        train_images=whole.train_images[::10],
        train_labels=whole.train_labels[::10],
        test_images=whole.test_images[:200],
        test_labels=whole.test_labels[:200],
    )
    monkeypatch.setattr(data, "load", lambda name, **options: part)
    monkeypatch.setattr("apac.reporting.figures.canvas.DPI", 40)
    monkeypatch.setattr("apac.reporting.figures.linear_output.SAMPLES", 50)
    monkeypatch.setattr("apac.inference.engine.MIN_OPERATIONS", float("inf"))  # exporting takes longer than the job
    monkeypatch.setattr("apac.reporting.figures.images.MAX_SHOWN", 8)  # a figure of many images is slow to draw
    return part
