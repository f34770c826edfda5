"""A small MNIST, and fake sources that provide it."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

from apac.data import sources
from apac.data.mnist import FILES, MNIST
from apac.data.sources import Arrays, Mirror
from apac.data.store import Entry
from apac.progress import Progress

GOOD = {
    "train_images": np.arange(3 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(3, 1, 28, 28),
    "train_labels": np.array([5, 0, 4], np.uint8),
    "test_images": np.full((2, 1, 28, 28), 7, np.uint8),
    "test_labels": np.array([1, 9], np.uint8),
}


def idx(array: np.ndarray) -> bytes:
    array = array.reshape(len(array), 28, 28) if array.ndim == 4 else array
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def served(arrays: Arrays = GOOD) -> dict[str, bytes]:
    return {f"{FILES[key]}.gz": gzip.compress(idx(array)) for key, array in arrays.items()}


def small(*from_sources: sources.Source) -> Entry:
    return dataclasses.replace(
        MNIST,
        sources=from_sources,
        shapes={key: array.shape for key, array in GOOD.items()},
        digests={key: hashlib.sha256(array.tobytes()).hexdigest() for key, array in GOOD.items()},
    )


@dataclasses.dataclass
class Server:
    """Serves the contents of `files`; the connection breaks halfway for paths in `cut`."""

    address: str
    files: dict[str, bytes]
    cut: set[str]

    def mirror(self, folder: str) -> Mirror:
        first = MNIST.sources[0]
        assert isinstance(first, Mirror)
        return dataclasses.replace(first, address=f"{self.address}/{folder}/")

    def put(self, folder: str, files: dict[str, bytes]) -> Mirror:
        self.files.update({f"/{folder}/{name}": content for name, content in files.items()})
        return self.mirror(folder)


@dataclasses.dataclass(frozen=True)
class Given:
    """A source that calls a function of the test."""

    run: Callable[[Path], Arrays]

    def __str__(self) -> str:
        return "given"

    def get(self, folder: Path, progress: Progress) -> Arrays:
        return self.run(folder)


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir()) if cache.exists() else []
