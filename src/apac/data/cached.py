"""Folders and torch Datasets whose pixels are decoded once into a memory-mapped file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apac.data.items import Item, ItemReader, read_items
from apac.data.mapped import Description, MappedImages, image_digest, open_file, write_file
from apac.errors import InputError
from apac.progress import Progress

CHECKED = 16  # items of a torch Dataset that are compared with the file


def cached_files(
    cache: Path,
    name: str,
    list_files: Callable[[], Sequence[Path]],
    shape: tuple[int, int, int],
    fit: str,
    items: Callable[[Sequence[Path]], Iterator[Item | None]],
    progress: Progress,
) -> tuple[MappedImages, Description]:
    """Return the pixels of image files, decoded into the folder `cache` unless it has them already.

    The files are listed again afterwards, and InputError is raised if they are not what was decoded.
    """
    paths = list_files()
    source = _source(paths, fit)
    path = cache / f"{name}-{_hash([[str(path) for path in paths[:1]], shape, fit])}.u8"
    found = open_file(path, source, shape, len(paths), verify=True)
    if found is not None:
        return found
    size = len(paths) * int(np.prod(shape)) / 1e9
    progress("decoding images", 0, len(paths), f"{size:.2f} GB to {path}")
    write_file(path, source, shape, items(paths), len(paths))
    if _source(list_files(), fit) != source:
        path.unlink(missing_ok=True)
        path.with_suffix(".json").unlink(missing_ok=True)
        raise InputError(f"the files of {name} changed while they were read; start again when they are complete.")
    return _written(path, source, shape, len(paths))


def cached_items(cache: Path, dataset: Any, workers: int, progress: Progress) -> tuple[MappedImages, Description]:
    """Return the pixels of a map-style Dataset, read by a DataLoader into the folder `cache` unless it has them."""
    reader = ItemReader(dataset)
    name, count, shape = type(dataset).__name__, len(reader), reader.image_shape
    if reader.dtype != torch.uint8:
        raise InputError(f"the images of the dataset are {reader.dtype}, and a cache holds uint8; omit the cache.")
    source = f"{type(dataset).__module__}.{type(dataset).__qualname__}, {count} items"
    path = cache / f"{name}-{_hash([source, shape])}.u8"
    found = open_file(path, source, shape, count, verify=True)
    if found is not None and _same_items(reader, found[1]):
        return found
    progress("reading images", 0, count, f"{count * int(np.prod(shape)) / 1e9:.2f} GB to {path}")
    write_file(path, source, shape, read_items(reader, workers, progress), count)
    return _written(path, source, shape, count)


def _written(path: Path, source: str, shape: tuple[int, int, int], count: int) -> tuple[MappedImages, Description]:
    found = open_file(path, source, shape, count, verify=False)
    if found is None:
        raise InputError(f"another process has replaced {path} while it was written; start again.")
    return found


def _same_items(reader: ItemReader, found: Description) -> bool:
    positions = sorted({i * (found.count - 1) // (CHECKED - 1) for i in range(CHECKED)})
    items = ((i, reader[i]) for i in positions)
    return all(
        not isinstance(item, str) and image_digest(item[0]) == found.digests[i] and item[1] == found.labels[i]
        for i, item in items
    )


def _source(paths: Sequence[Path], fit: str) -> str:
    """Return a hash of the files' names, sizes and times."""
    try:
        states = [(path, path.stat()) for path in paths]
    except OSError as error:
        raise InputError(f"{error.filename} was removed while the files were read; start again.") from error
    return _hash([fit, *([str(path), state.st_size, state.st_mtime_ns] for path, state in states)])


def _hash(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=6).hexdigest()
