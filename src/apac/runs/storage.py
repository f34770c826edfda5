"""Files that are written whole or not at all, and read with a sentence when they are broken."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from apac.errors import InputError


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    write_whole(path, lambda temporary: temporary.write_bytes(data))


def write_json(path: Path, form: Any) -> None:
    write_text(path, json.dumps(form, indent=2) + "\n")


def write_tensors(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, str]) -> None:
    """Tensors and notes as one safetensors file."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_whole(path, lambda temporary: save_file(plain, temporary, metadata=dict(notes)))


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """`write` fills a file beside `path`, which then takes its place in one step."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"could not write {path}: {reason}; what was there before is unchanged.") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_json(path: Path, remedy: str) -> Any:
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"could not read {path}: {error.strerror}; {remedy}.") from error
    except ValueError as error:
        raise InputError(f"{path} is damaged or truncated; {remedy}.") from error


def read_tensors(path: Path, remedy: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and notes that `write_tensors` wrote; `remedy` says what to do where they cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except OSError as error:
        raise InputError(f"could not read {path}: {error.strerror or error}; {remedy}.") from error
    except SafetensorError as error:
        raise InputError(f"{path} is damaged or truncated; {remedy}.") from error
