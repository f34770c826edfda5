"""Atomic writes, and readable errors for damaged files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from apac import limits
from apac.data.temporary import temporary_beside
from apac.errors import ApacError, StorageError
from apac.validation import open_regular, parse_json

Shapes = dict[str, tuple[int, ...]]  # of tensors, by name


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(data))


def write_json(path: Path, payload: Any) -> None:
    write_text(path, json.dumps(payload, indent=2) + "\n")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata as one safetensors file."""
    stored: dict[str, Tensor] = {}
    pointers: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        # safetensors rejects tensors that share memory, for example those of a layer that is used twice.
        stored[name] = plain.clone() if plain.data_ptr() in pointers else plain
        pointers.add(plain.data_ptr())
    # Not save_file, which gives the file a mode that only its owner can read.
    write_bytes(path, save(stored, metadata=dict(metadata)))


def check_replaceable(path: Path) -> None:
    """Raise StorageError if a path is a folder, a pipe or a device."""
    is_device = os.path.realpath(path.parent) == "/dev"  # also /dev/stdout, a link to any file
    if is_device or (os.path.exists(path) and not os.path.isfile(path)):
        raise StorageError(f"{path} is not a regular file, so it is not replaced; choose another name.")


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` with a temporary file in the same folder, which then replaces `path` atomically.

    A link is replaced, not the file that it points to, which someone else may have chosen. A folder, a pipe or a
    device is not replaced.
    """
    check_replaceable(path)
    try:
        with temporary_beside(path) as temporary:
            write(temporary)
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            temporary.replace(path)
    except ApacError:  # of `write`
        raise
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StorageError(
            f"could not write {path}: {reason}; an existing file is unchanged. Free some space, or "
            f"choose a folder that you may write to."
        ) from error


def read_json(path: Path, remedy: str) -> Any:
    """Return the parsed file. `remedy` is the end of the error message."""
    try:
        with open_regular(path) as file:
            return parse_json(file.read(limits.JSON_BYTES + 1))
    except OSError as error:
        raise StorageError(f"could not read {path}: {error.strerror}; {remedy}.") from error
    except ValueError as error:
        raise StorageError(f"{path} is damaged or truncated; {remedy}.") from error


def read_tensors(path: Path, remedy: str, check: Callable[[Shapes], None]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and metadata that `write_tensors` stored. `remedy` is the end of the error message.

    `check` is called with the shapes of the tensors before any of them is read, and may raise an error.
    """
    try:
        with open_regular(path) as opened:
            size = int.from_bytes(opened.read(8), "little")
        if size > limits.TENSOR_HEADER_BYTES:
            raise SafetensorError("the header is too large")
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            if len(names) > limits.TENSORS:
                raise SafetensorError("too many tensors")
            check({name: tuple(file.get_slice(name).get_shape()) for name in names})
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except ApacError:
        raise
    except OSError as error:
        raise StorageError(f"could not read {path}: {error.strerror or error}; {remedy}.") from error
    except Exception as error:  # besides SafetensorError, torch refuses some types and sizes in its own ways
        raise StorageError(f"{path} is damaged or truncated; {remedy}.") from error
