"""The cache: one verified file per data set, stored at once or not at all."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import platformdirs
import safetensors
import safetensors.numpy
import safetensors.torch
from numpy.typing import NDArray
from torch import Tensor

from apac.data.sources import Arrays, Source, SourceFailed
from apac.errors import InputError
from apac.progress import Progress


@dataclass(frozen=True)
class Entry:
    """A data set that is fetched: where from, and what its decoded bytes must be."""

    name: str
    classes: tuple[str, ...]
    sources: tuple[Source, ...]  # in the order in which they are tried
    shapes: Mapping[str, tuple[int, ...]]
    digests: Mapping[str, str]  # SHA-256 of each array's uint8 bytes in C order

    @property
    def file(self) -> str:
        return f"{self.name}.safetensors"


def cache_folder() -> Path:
    """Where fetched data are kept: the folder that APAC_DATA names, or else the user's cache."""
    chosen = os.environ.get("APAC_DATA")
    return Path(chosen).expanduser() if chosen else Path(platformdirs.user_cache_dir("apac"))


def read(entry: Entry) -> dict[str, Tensor] | None:
    """The verified tensors of the cached file, or nothing where there is no file; a damaged file is removed."""
    path = cache_folder() / entry.file
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(
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
        raise InputError(
            f"{path} is damaged (its {damaged} is not that of {entry.name}) and was removed; "
            f"run `apac data fetch {entry.name}` again."
        )
    return tensors


def fetch(entry: Entry, progress: Progress) -> Path:
    """Get the data from the first source that gives them unharmed, and store them."""
    folder = cache_folder()
    path = folder / entry.file
    failures = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in entry.sources:
            # Inside the cache, so that the last step is a rename on one disk; gone however this block ends.
            with tempfile.TemporaryDirectory(prefix=f".{entry.name}-", dir=folder) as temporary:
                try:
                    # Contiguous, as safetensors writes the memory as it lies.
                    arrays = {k: np.ascontiguousarray(a) for k, a in source.get(Path(temporary), progress).items()}
                    if wrong := _mismatch(entry, arrays):
                        raise SourceFailed(f"wrong {wrong}")
                except SourceFailed as failure:
                    failures.append(f"{source} ({failure})")
                    continue
                _store(arrays, Path(temporary) / entry.file, path)
                return path
    except OSError as error:
        raise InputError(
            f"cannot store {entry.name} at {path} ({error.strerror or error}); "
            "make room and allow writing there, or set APAC_DATA to another folder."
        ) from error
    raise InputError(
        f"no source gave {entry.name}: {', '.join(failures)}; connect to the network and run "
        f"`apac data fetch {entry.name}` again, or set APAC_DATA to a folder that has {entry.file}."
    )


def _store(arrays: dict[str, NDArray[np.uint8]], temporary: Path, path: Path) -> None:
    with temporary.open("wb") as file:
        file.write(safetensors.numpy.save(arrays))
        file.flush()
        os.fsync(file.fileno())  # before the rename, so that a crash leaves the whole file or none
    os.replace(temporary, path)


def _mismatch(entry: Entry, arrays: Arrays) -> str | None:
    """The first thing that is not as it must be."""
    if set(arrays) != set(entry.shapes):
        return "list of arrays"
    for key, shape in entry.shapes.items():
        array = arrays[key]
        if array.shape != shape or array.dtype != np.uint8:
            return f"shape of {key.replace('_', ' ')}"
        if hashlib.sha256(array.data).hexdigest() != entry.digests[key]:
            return f"digest of {key.replace('_', ' ')}"
    return None
