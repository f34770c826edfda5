"""The items of a map-style torch Dataset, read by a DataLoader: once, or again for every batch."""

from __future__ import annotations

import operator
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pickle import PicklingError
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from apac.data.mapped import StoredImages, image_digest
from apac.errors import InputError
from apac.progress import Progress
from apac.randomness import generator
from apac.validation import quoted

Item = tuple[Tensor, int]
READ_TOGETHER = 64  # items that a worker reads at once
LARGEST = 1 << 62  # label, which fits into int64


class ItemReader:
    """The items of a Dataset as pixels (C, H, W) and a label, or a sentence that says what is wrong with one."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.digests: Sequence[str] = ()  # of all items; if known, items that differ are refused
        self._shape: tuple[int, ...] | None = None
        self._dtype: torch.dtype | None = None
        try:
            self._count = len(dataset)
        except Exception as error:  # a dataset of the caller may raise anything
            raise InputError(f"the length of the dataset is unknown: {_reason(error)}; implement __len__.") from error
        if not self._count:
            raise InputError("the dataset must hold at least one item to train on.")
        first = self[0]
        if isinstance(first, str):
            raise InputError(first)
        self._shape, self._dtype = tuple(first[0].shape), first[0].dtype

    def __len__(self) -> int:
        return self._count

    @property
    def image_shape(self) -> tuple[int, int, int]:
        assert self._shape is not None
        channels, height, width = self._shape
        return channels, height, width

    @property
    def dtype(self) -> torch.dtype:
        assert self._dtype is not None
        return self._dtype

    def __getitem__(self, index: int) -> Item | str:
        try:
            image, label = self.dataset[index]
            pixels, number = image_tensor(image), operator.index(label)
        except Exception as error:  # in another process
            return f"item {index} of the dataset is not a pair (image, label): {_reason(error)}."
        if not -LARGEST <= number <= LARGEST:
            return f"item {index} of the dataset has the label {quoted(number)}; labels are 0 … K - 1 for K classes."
        shape = tuple(pixels.shape)
        if pixels.ndim != 3 or not (pixels.dtype == torch.uint8 or pixels.is_floating_point()):
            return f"item {index} of the dataset must be uint8 or floating-point (C, H, W), got {pixels.dtype} {shape}."
        if self._shape is not None and (shape, pixels.dtype) != (self._shape, self._dtype):
            return (
                f"the images of a dataset must have one shape and type, got {pixels.dtype} {shape} for item {index}, "
                f"and {self._dtype} {self._shape} for item 0; resize or convert them."
            )
        if pixels.is_floating_point() and not pixels.isfinite().all():
            return f"item {index} of the dataset has NaN or infinite pixels; fix or remove it."
        if self.digests and item_digest((pixels, number)) != self.digests[index]:
            return (
                f"item {index} of the dataset changed while it was used; a Dataset that is streamed must return the "
                f"same items again, and random transforms belong to the deformation."
            )
        return pixels, number


class DatasetImages(StoredImages):
    """The images of a Dataset, which are read again whenever they are used, by `workers` processes."""

    def __init__(self, reader: ItemReader, workers: int, positions: Tensor) -> None:
        self._reader, self._workers, self._positions = reader, workers, positions
        self.dtype = reader.dtype
        self.shape = torch.Size((len(positions), *reader.image_shape))

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        rows = torch.arange(len(self))[index]
        if not len(rows):
            return torch.empty(0, *self.shape[1:], dtype=self.dtype)
        if len(rows) <= READ_TOGETHER:  # faster than starting workers
            return next(_load(self._reader, [self._positions[rows].tolist()], 0))[0]
        return torch.cat(list(self.batches(rows.split(READ_TOGETHER))))

    def subset(self, index: Tensor | slice) -> DatasetImages:
        return DatasetImages(self._reader, self._workers, self._positions[index])

    def batches(self, indices: Iterable[Tensor]) -> Generator[Tensor, None, None]:
        rows = (self._positions[index].tolist() for index in indices)
        loaded = _load(self._reader, rows, self._workers)  # which starts the workers
        return (images for images, _ in loaded)


def read_items(reader: ItemReader, workers: int, progress: Progress) -> Iterator[Item]:
    """Yield all items in order, read by `workers` processes of a DataLoader; 0 reads them in this process."""
    rows = (part.tolist() for part in torch.arange(len(reader)).split(READ_TOGETHER))
    done = 0
    for images, labels in _load(reader, rows, workers):
        for item in zip(images, labels, strict=True):
            done += 1
            progress("reading images", done, len(reader))
            yield item


def streamed_items(reader: ItemReader, workers: int, progress: Progress) -> tuple[DatasetImages, list[int]]:
    """Read all items once, and return images that are read again whenever they are used, with the labels."""
    labels, digests = [], []
    for item in read_items(reader, workers, progress):
        labels.append(item[1])
        digests.append(item_digest(item))
    reader.digests = digests
    return DatasetImages(reader, workers, torch.arange(len(reader))), labels


def _load(
    reader: ItemReader, rows: Iterable[list[int]], workers: int
) -> Generator[tuple[Tensor, list[int]], None, None]:
    """Yield the images (n, C, H, W) and labels at the rows of each batch. Workers read the next ones meanwhile."""
    from torch.utils.data import DataLoader

    # With a generator of its own, it draws no numbers from torch's.
    loader: Any = DataLoader(
        reader,  # type: ignore[arg-type]
        batch_sampler=rows,
        num_workers=workers,
        collate_fn=_collate,
        generator=generator(0, "dataset", 0),
    )
    try:
        # The calling thread starts the workers: processes that a thread of an executor starts do not end properly.
        return _checked(iter(loader))
    except (PicklingError, AttributeError, TypeError, OSError, RuntimeError) as error:
        raise InputError(
            f"the dataset cannot be read by {workers} processes: {_reason(error)}; define its class at the top level "
            f"of a module, or use workers=0."
        ) from error


def _checked(loading: Iterator[tuple[Tensor, list[int]] | str]) -> Generator[tuple[Tensor, list[int]], None, None]:
    try:
        with translate_worker_errors():
            for batch in loading:
                if isinstance(batch, str):
                    raise InputError(batch)
                yield batch
    finally:
        del loading  # which ends the workers, even if the frame is kept by an exception


@contextmanager
def translate_worker_errors() -> Iterator[None]:
    """Convert torch's error about a worker that was killed, which the main thread raises wherever it is."""
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        reason = str(error).split("\n")[0].rstrip(".")
        raise InputError(f"a worker that reads the dataset ended, perhaps because memory ran out: {reason}.") from error


def _collate(items: list[Item | str]) -> tuple[Tensor, list[int]] | str:
    """Stack the images of items, or return the sentence of the first one that cannot be used."""
    read: list[Item] = []
    for item in items:
        if isinstance(item, str):
            return item
        read.append(item)
    return torch.stack([image for image, _ in read]), [label for _, label in read]


def image_tensor(image: Any) -> Tensor:
    """Convert a tensor or array (C, H, W) or (H, W), or a PIL image, to a tensor (C, H, W)."""
    if isinstance(image, Image.Image):
        picture = image if image.mode in ("L", "RGB") else image.convert("RGB")
        pixels = torch.from_numpy(np.array(picture))  # (H, W) or (H, W, C)
        return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)
    tensor = torch.as_tensor(image).detach().cpu()
    return tensor[None] if tensor.ndim == 2 else tensor


def item_digest(item: Item) -> str:
    """Return a hash of an image, with its label."""
    return f"{image_digest(item[0])} {item[1]}"


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".") or "no message"
    return f"{type(error).__name__}: {text}"
