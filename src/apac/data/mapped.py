"""Images in a memory-mapped file of uint8 pixels: as many as the disk holds, in bounded memory."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apac.data.temporary import temporary_beside
from apac.errors import InputError, StorageError
from apac.validation import MAX_INTEGER, json_bytes, open_regular, parse_json

FORMAT = 1  # of the file and its description; files in any other format are made again
PART = 8 << 20  # values that are converted to floating-point numbers at once
RELEASE = 64 << 20  # bytes that are read before their pages are given back


class StoredImages(ABC):
    """Images (N, C, H, W) that are not in memory, or some of them. An index returns a tensor in memory."""

    dtype: torch.dtype = torch.uint8
    shape: torch.Size

    @abstractmethod
    def __getitem__(self, index: Tensor | slice) -> Tensor: ...

    @abstractmethod
    def subset(self, index: Tensor | slice) -> StoredImages:
        """Return the images at these positions, without reading them."""

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        for part in self.split(64):
            yield from part

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def split(self, size: int) -> Iterator[Tensor]:
        """Yield the images in parts of `size`, one after the other."""
        return self.batches(torch.arange(len(self)).split(size) if len(self) else ())

    def batches(self, indices: Iterable[Tensor]) -> Generator[Tensor, None, None]:
        """Yield the images at the positions of each batch."""
        for index in indices:
            yield self[index]


class MappedImages(StoredImages):
    """Images in a file of pixels.

    Pages that were read are given back to the system, which keeps them cached while memory is free, so that a process
    does not grow with the file.
    """

    def __init__(self, path: Path, shape: tuple[int, int, int, int], positions: Tensor | None = None) -> None:
        count = shape[0] if positions is None else len(positions)
        self.path, self.shape, self._stored = path, torch.Size((count, *shape[1:])), shape
        self._positions = positions
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size != prod(shape):
                raise StorageError(f"{path} is damaged or truncated; remove it, and it is made again.")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._pixels = np.frombuffer(self._map, dtype=np.uint8).reshape(shape)
        self._read = 0

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        rows = torch.arange(len(self))[index] if self._positions is None else self._positions[index]
        images = torch.from_numpy(self._pixels[rows.numpy()])  # a copy
        self._read += images.nbytes
        if self._read >= RELEASE and hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED)
            self._read = 0
        return images

    def subset(self, index: Tensor | slice) -> MappedImages:
        positions = torch.arange(len(self)) if self._positions is None else self._positions
        return MappedImages(self.path, self._stored, positions[index])


def part_size(shape: Sequence[int], maximum: int) -> int:
    """Return how many images of shape (C, H, W) to convert at once: `maximum`, or fewer large ones."""
    return max(1, min(maximum, PART // max(1, prod(shape))))


def take(images: Any, index: Tensor | slice) -> Any:
    """Return the images at these positions; those that are not in memory are not read."""
    return images.subset(index) if isinstance(images, StoredImages) else images[index]


def read_batches(images: Tensor | StoredImages, indices: Iterable[Tensor]) -> Generator[Tensor, None, None]:
    """Yield the images at the positions of each batch."""
    return images.batches(indices) if isinstance(images, StoredImages) else (images[index] for index in indices)


@dataclass(frozen=True)
class Description:
    """What a file of pixels was made of."""

    source: str  # what it depends on, such as the files with their sizes and times
    shape: tuple[int, int, int]  # (C, H, W)
    read: tuple[bool, ...]  # which images could be read; only those are in the file
    labels: tuple[int, ...]  # of those
    digests: tuple[str, ...]  # of those

    @property
    def count(self) -> int:
        return len(self.digests)

    @property
    def is_consistent(self) -> bool:
        """Whether the lists, which come from a file, have the right types and lengths."""
        lists = ((self.read, bool), (self.labels, int), (self.digests, str))
        typed = all(type(values) is tuple and set(map(type, values)) <= {kind} for values, kind in lists)
        fits = typed and all(abs(label) <= MAX_INTEGER for label in self.labels)
        return fits and sum(self.read) == len(self.labels) == len(self.digests)


def open_file(
    path: Path, source: str, shape: tuple[int, int, int], count: int, *, verify: bool
) -> tuple[MappedImages, Description] | None:
    """Return the images of an earlier `write_file` of `count` items from the same source.

    Returns None if there are none or they are damaged.
    """
    try:
        with open_regular(path.with_suffix(".json")) as file:
            payload = parse_json(file.read(json_bytes(count) + 1), images=count)
        if payload.pop("format") != FORMAT or payload["source"] != source:
            return None
        fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in payload.items()}
        found = Description(**fields)
        if found.shape != shape or len(found.read) != count or not found.is_consistent:
            return None
        images = MappedImages(path, (found.count, *shape))
    except (OSError, StorageError, ValueError, TypeError, KeyError, AttributeError):
        return None
    if verify:
        digests = (digest for part in images.split(256) for digest in map(image_digest, part))
        if any(digest != expected for digest, expected in zip(digests, found.digests, strict=True)):
            return None
    return images, found


def write_file(
    path: Path, source: str, shape: tuple[int, int, int], items: Iterable[tuple[Tensor, int] | None], count: int
) -> None:
    """Write up to `count` images with their labels; None stands for one that cannot be read. All or nothing is left.

    The description is written last: without it, the file of pixels is not used.
    """
    size = count * prod(shape)
    description = path.with_suffix(".json")
    read, labels, digests = [], [], []
    try:
        with temporary_beside(path) as temporary:
            free = shutil.disk_usage(path.parent).free
            if size > free:
                raise InputError(
                    f"the pixels take {size / 1e9:.1f} GB, and {path.parent} has {free / 1e9:.1f} GB left; choose "
                    f"another cache, or a smaller size."
                )
            with temporary.open("wb") as file:
                for item in items:
                    read.append(item is not None)
                    if item is not None:
                        file.write(item[0].contiguous().numpy().data)
                        labels.append(item[1])
                        digests.append(image_digest(item[0]))
                file.flush()
                os.fsync(file.fileno())
            description.unlink(missing_ok=True)
            temporary.replace(path)
        payload = {"format": FORMAT, "source": source, "shape": shape, "read": read, "labels": labels}
        try:
            with temporary_beside(description) as temporary:
                temporary.write_text(json.dumps(payload | {"digests": digests}))
                temporary.replace(description)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageError(
            f"could not write the cache {path}: {error.strerror or error}; nothing is left of it. Choose another "
            f"folder, or free some space."
        ) from error


def image_digest(image: Tensor) -> str:
    pixels = image.contiguous().view(torch.uint8)  # numpy has no bfloat16
    return hashlib.blake2b(pixels.numpy().data, digest_size=16).hexdigest()
