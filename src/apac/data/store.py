"""The cache: one verified file per data set, written atomically."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import platformdirs
import safetensors
import safetensors.numpy
import safetensors.torch
from numpy.typing import NDArray
from torch import Tensor

from apac import limits
from apac.data.sources import Arrays, Source, SourceFailed
from apac.data.temporary import temporary_beside
from apac.errors import StorageError
from apac.progress import Progress
from apac.validation import open_regular


@dataclass(frozen=True)
class Entry:
    """A data set to download: its sources, and the digests of its decoded arrays.

    Sources pack the same arrays into different files, so the digests are computed from the decoded arrays, and not from
    the files, as pooch would.
    """

    name: str
    classes: tuple[str, ...]
    sources: tuple[Source, ...]  # tried in this order
    shapes: Mapping[str, tuple[int, ...]]
    digests: Mapping[str, str]  # SHA-256 of each array's uint8 bytes in C order

    @property
    def file(self) -> str:
        return f"{self.name}.safetensors"


def cache_folder() -> Path:
    """Return the folder of the downloaded data: the environment variable APAC_DATA, or the user's cache folder."""
    folder = os.environ.get("APAC_DATA")
    try:
        return Path(folder).expanduser() if folder else Path(platformdirs.user_cache_dir("apac"))
    except RuntimeError as error:  # the user has no home folder, or there is no such user
        raise StorageError("there is no home folder to store data in; set APAC_DATA to a folder.") from error


def read(entry: Entry) -> dict[str, Tensor] | None:
    """Read and verify the cached file; return None if there is none. Remove a damaged file and raise StorageError."""
    path = cache_folder() / entry.file
    try:
        with open_regular(path) as file:  # one byte more than a complete file may have
            content = file.read(sum(map(prod, entry.shapes.values())) + limits.TENSOR_HEADER_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(
            f"cannot read {path} ({error.strerror}); make it a readable file or set APAC_DATA to another folder."
        ) from error
    try:
        tensors = safetensors.torch.load(content)
        damaged = _mismatch(entry, {key: tensor.numpy() for key, tensor in tensors.items()})
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError):
        damaged = "contents"
    if damaged:
        with suppress(OSError):
            path.unlink()
        raise StorageError(
            f"{path} was damaged (wrong {damaged}) and has been removed; load {entry.name} again to download it."
        )
    return tensors


def fetch(entry: Entry, progress: Progress) -> Path:
    """Download the data from the first working source, verify and store them."""
    path = cache_folder() / entry.file
    failures = []
    try:
        for source in entry.sources:
            # Inside the cache folder, because renaming is atomic only within a file system.
            with temporary_beside(path, folder=True) as temporary:
                try:
                    # Contiguous, because safetensors writes the raw memory.
                    found = source.get(Path(mkdtemp(dir=temporary)), progress)
                    arrays = {k: np.ascontiguousarray(a) for k, a in found.items()}
                    if wrong := _mismatch(entry, arrays):
                        raise SourceFailed(f"wrong {wrong}")
                except SourceFailed as failure:
                    failures.append(f"{source} ({failure})")
                    continue
                _store(arrays, temporary / entry.file, path)
                return path
    except OSError as error:
        raise StorageError(
            f"cannot store {entry.name} at {path} ({error.strerror or error}); "
            "free some space and allow writing there, or set APAC_DATA to another folder."
        ) from error
    raise StorageError(
        f"{entry.name} could not be downloaded: {', '.join(failures)}; connect to the network and try again, "
        f"or set APAC_DATA to a folder that has {entry.file}."
    )


def _store(arrays: dict[str, NDArray[np.uint8]], temporary: Path, path: Path) -> None:
    with temporary.open("wb") as file:
        file.write(safetensors.numpy.save(arrays))
        file.flush()
        os.fsync(file.fileno())  # before the rename, so that a crash leaves the complete file or none
    os.replace(temporary, path)


def _mismatch(entry: Entry, arrays: Arrays) -> str | None:
    """Return the first property that is wrong, or None."""
    if set(arrays) != set(entry.shapes):
        return "list of arrays"
    for key, shape in entry.shapes.items():
        array = arrays[key]
        if array.shape != shape or array.dtype != np.uint8:
            return f"shape of {key.replace('_', ' ')}"
        if hashlib.sha256(array.data).hexdigest() != entry.digests[key]:
            return f"digest of {key.replace('_', ' ')}"
    return None
