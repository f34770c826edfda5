"""Image files that are decoded for every batch: neither memory nor a cache holds their pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from apac.data.image_file import Fit, decode_image
from apac.data.mapped import StoredImages, image_digest
from apac.errors import InputError
from apac.inference.workers import worker_pool


class FileImages(StoredImages):
    """Images of files, which must not change. Index them inside of `without_warnings`."""

    def __init__(
        self, paths: Sequence[Path], digests: Sequence[str], image_shape: tuple[int, int, int], fit: Fit
    ) -> None:
        self._paths, self._digests, self._image_shape, self._fit = paths, digests, image_shape, fit
        self.shape = torch.Size((len(paths), *image_shape))

    def __getitem__(self, index: Tensor | slice) -> Tensor:
        rows = torch.arange(len(self))[index].tolist()
        images = torch.empty(len(rows), *self._image_shape, dtype=torch.uint8)
        with worker_pool() as pool:
            for position, image in enumerate(pool.map(self._decode, rows)):
                images[position] = image
        return images

    def subset(self, index: Tensor | slice) -> FileImages:
        rows = torch.arange(len(self))[index].tolist()
        chosen = [self._paths[i] for i in rows], [self._digests[i] for i in rows]
        return FileImages(*chosen, self._image_shape, self._fit)

    def _decode(self, row: int) -> Tensor:
        path = self._paths[row]
        try:
            image = decode_image(path, self._image_shape, fit=self._fit)[0]
        except InputError as error:
            raise _changed(path) from error
        if image_digest(image) != self._digests[row]:
            raise _changed(path)
        return image


def streamed_files(
    paths: Sequence[Path],
    image_shape: tuple[int, int, int],
    fit: Fit,
    items: Callable[[Sequence[Path]], Iterator[tuple[Tensor, Any] | None]],
) -> tuple[FileImages, Tensor]:
    """Decode all files once, and return those that can be read, and which these are, (N,)."""
    digests = ["" if item is None else image_digest(item[0]) for item in items(paths)]
    read = torch.tensor([bool(digest) for digest in digests])
    return FileImages(paths, digests, image_shape, fit).subset(read), read


def _changed(path: Path) -> InputError:
    return InputError(f"{path} changed while the images were used; start again when the files are complete.")
