"""Folders and torch Datasets whose pixels are decoded once into a memory-mapped file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from apac.data.mapped import Description, MappedImages, image_digest, open_file, write_file
from apac.errors import InputError
from apac.progress import Progress

Item = tuple[Tensor, int]
CHECKED = 16  # items of a torch Dataset that are compared with the file
READ_TOGETHER = 64  # items of a torch Dataset that a worker reads at once


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
    found = open_file(path, source, verify=True)
    if found is not None:
        return found
    size = len(paths) * int(np.prod(shape)) / 1e9
    progress("decoding images", 0, len(paths), f"{size:.2f} GB to {path}")
    write_file(path, source, shape, items(paths), len(paths))
    if _source(list_files(), fit) != source:
        path.unlink(missing_ok=True)
        path.with_suffix(".json").unlink(missing_ok=True)
        raise InputError(f"the files of {name} changed while they were read; start again when they are complete.")
    return _written(path, source)


def cached_items(cache: Path, dataset: Any, workers: int, progress: Progress) -> tuple[MappedImages, Description]:
    """Return the pixels of a map-style Dataset, read by a DataLoader into the folder `cache` unless it has them."""
    name, count = type(dataset).__name__, len(dataset)
    if not count:
        raise InputError("the dataset must hold at least one item to train on.")
    reader = ItemReader(dataset)
    first = reader[0]
    if isinstance(first, str):
        raise InputError(first)
    shape: Any = tuple(first[0].shape)
    reader.shape = shape
    source = f"{type(dataset).__module__}.{type(dataset).__qualname__}, {count} items"
    path = cache / f"{name}-{_hash([source, shape])}.u8"
    found = open_file(path, source, verify=True)
    if found is not None and _same_items(reader, found[1]):
        return found
    progress("reading images", 0, count, f"{count * first[0].numel() / 1e9:.2f} GB to {path}")
    write_file(path, source, shape, _read(reader, workers, progress), count)
    return _written(path, source)


def _written(path: Path, source: str) -> tuple[MappedImages, Description]:
    found = open_file(path, source, verify=False)
    if found is None:
        raise InputError(f"another process has replaced {path} while it was written; start again.")
    return found


class ItemReader:
    """The items of a Dataset as uint8 pixels and a label, or a sentence that says what is wrong with one."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.shape: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Item | str:
        try:
            image, label = self.dataset[index]
            pixels, number = image_tensor(image), int(label)
        except Exception as error:  # a dataset of the caller may raise anything, in another process
            reason = " ".join(str(error).split()).rstrip(".") or "no message"
            return f"item {index} of the dataset is not a pair (image, label): {type(error).__name__}: {reason}."
        if pixels.dtype != torch.uint8:
            return f"item {index} of the dataset is {pixels.dtype}, and a cache holds uint8 pixels; omit the cache."
        if self.shape is not None and pixels.shape != self.shape:
            return (
                f"item {index} of the dataset has the shape {tuple(pixels.shape)}, and item 0 {self.shape}; resize "
                f"them to one shape."
            )
        return pixels, number


def image_tensor(image: Any) -> Tensor:
    """Convert a tensor or array (C, H, W) or (H, W), or a PIL image, to a tensor (C, H, W)."""
    if isinstance(image, Image.Image):
        picture = image if image.mode in ("L", "RGB") else image.convert("RGB")
        pixels = torch.from_numpy(np.array(picture))  # (H, W) or (H, W, C)
        return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)
    tensor = torch.as_tensor(image)
    return tensor[None] if tensor.ndim == 2 else tensor


def _read(reader: ItemReader, workers: int, progress: Progress) -> Iterator[Item]:
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(reader, batch_size=READ_TOGETHER, num_workers=workers, collate_fn=list)  # type: ignore[arg-type]
    done = 0
    try:
        for items in loader:
            for item in items:
                if isinstance(item, str):
                    raise InputError(item)
                done += 1
                progress("reading images", done, len(reader))
                yield item
    except RuntimeError as error:  # a worker was killed, for example because memory ran out
        raise InputError(
            f"a worker that reads the dataset ended: {str(error).split(chr(10))[0].rstrip('.')}."
        ) from error


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
