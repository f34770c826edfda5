"""Checks of an ONNX file before a library loads it."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apac import limits
from apac.errors import InputError, require

TENSOR = "onnx.TensorProto"
INTEGERS = (1, 2, 3, 4, 7, 8)  # `cpp_type` of the fields of integers, which have one byte or more each


def check_onnx(path: Path, max_bytes: int) -> None:
    """Raise InputError if a file is not an ONNX network, is too large, or has weights in other files.

    A file from elsewhere must not choose other files. The fields are counted because an empty node, two bytes in the
    file, takes 200 in memory, and the bytes of lists of integers because a small one, a byte in the file, takes up to
    25. Raw data and floating-point numbers are skipped: only the pages with other fields are read.
    """
    onnx = require("onnx", extra="fast")
    size = path.stat().st_size
    if size > max_bytes:
        raise InputError(
            f"{path} has {size >> 20:,} MiB, and a network may have {max_bytes >> 20:,}; raise max_bytes if you trust "
            f"the file."
        )
    if not size:
        raise InputError(f"{path} is empty; give an .onnx file.")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            listed, integers_allowed = 0, max(limits.ONNX_INTEGER_BYTES, max_bytes - limits.ONNX_BYTES)
            for count, (kind, name, value, integer_bytes) in enumerate(_fields(data, onnx.ModelProto.DESCRIPTOR)):
                if count >= limits.ONNX_FIELDS:
                    raise InputError(
                        f"{path} has more than {limits.ONNX_FIELDS:,} fields beside its weights; export a smaller one."
                    )
                listed += integer_bytes
                if listed > integers_allowed:
                    raise InputError(
                        f"{path} has more than {integers_allowed >> 20} MiB of integers outside of raw data; raise "
                        f"max_bytes if you trust the file, or convert its weights by onnx.numpy_helper.from_array."
                    )
                if kind == TENSOR and (name == "external_data" or (name == "data_location" and value)):
                    raise InputError(f"{path} has weights in other files; export it as one file.")
        except (IndexError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path} cannot be read as an ONNX network: it is damaged or truncated.") from error


def _fields(data: mmap.mmap, root: Any) -> Iterator[tuple[str, str | None, int, int]]:
    """Yield, of each field, its message, its name, its number or length, and the bytes of its list of integers.

    The format is that of protocol buffers. Raises IndexError or ValueError if it is damaged.
    """
    pending = [(root, 0, len(data))]
    while pending:  # graphs are nested in the attributes of their nodes
        message, at, end = pending.pop()
        known = message.fields_by_number
        while at < end:
            key, at = _varint(data, at)
            if key < 8:
                raise ValueError("fields are numbered from 1")
            field = known.get(key >> 3)
            value = integer_bytes = 0
            match key & 7:
                case 0:  # a number
                    value, at = _varint(data, at)
                case 1:  # eight bytes
                    at += 8
                case 2:  # a text, numbers, or a message
                    value, at = _varint(data, at)
                    if field is not None and field.message_type is not None:
                        pending.append((field.message_type, at, at + value))
                    elif field is not None and field.cpp_type in INTEGERS:
                        integer_bytes = value
                    at += value
                case 5:  # four bytes
                    at += 4
                case _:
                    raise ValueError("there is no such field")
            if at > end:
                raise ValueError("a field is longer than its message")
            yield message.full_name, None if field is None else field.name, value, integer_bytes


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """Return an integer of seven bits a byte, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
    raise ValueError("an integer has more than ten bytes")
