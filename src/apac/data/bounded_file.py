"""A file as Pillow may read it: with a limit on the reads, and on the bytes that precede the pixels."""

from __future__ import annotations

import os
import struct
from typing import IO, Any

from apac import limits
from apac.errors import InputError

CHUNK = 1 << 20
START_OF_SCAN = b"\xff\xda"


class BoundedFile:
    """A binary file for `Image.open`.

    Pillow parses headers in Python, some of them byte by byte: a comment or a list of empty chunks that fills a file
    would take minutes. It reads some formats as a whole before their size is known, and the same bytes again for every
    tag that refers to them.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        self.file, self.name = file, name
        self.reads = 0
        self.left = limits.HEADER_BYTES
        self.last = b""  # what was read last

    def read(self, size: int = -1) -> bytes:
        self.reads += 1
        data = self.file.read(self.left + 1 if size < 0 else min(size, self.left + 1))
        self.left -= len(data)
        if self.reads > limits.READS or self.left < 0 or exif_bytes(data) > limits.EXIF_BYTES:
            raise InputError(
                f"{self.name} has too many or too large headers; save it again with an image editor, as PNG or JPEG."
            )
        self.last = data
        return data

    def allow_pixels(self) -> None:
        """Allow to read the file once, when the size of the picture is known and allowed."""
        self.left += self.size()

    def size(self) -> int:
        """Return the bytes of the file."""
        position = self.file.tell()
        size = self.file.seek(0, os.SEEK_END)
        self.file.seek(position)
        return size

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()

    def fileno(self) -> int:
        """Return the descriptor, from which libtiff reads by itself; a file in memory has none and raises OSError."""
        return self.file.fileno()

    def close(self) -> None:
        self.file.close()

    def start(self, size: int = -1) -> bytes:
        """Return the first bytes of the file; all of them must be known to be few."""
        return self.part(0, size)

    def part(self, offset: int, size: int) -> bytes:
        """Return bytes of the file, which must be known to be few."""
        position = self.file.tell()
        self.file.seek(offset)
        data = self.file.read(size)
        self.file.seek(position)
        return data

    def count(self, pattern: bytes, offset: int = 0, size: int | None = None) -> int:
        """Return how often a pattern of two bytes occurs in the file, or in a part of it."""
        position = self.file.tell()
        self.file.seek(offset)
        found, last = 0, b""
        left = self.size() if size is None else size
        while chunk := self.file.read(min(CHUNK, left)):
            found += (last + chunk).count(pattern)
            last, left = chunk[-1:], left - len(chunk)
        self.file.seek(position)
        return found


def scans(picture: Any, file: BoundedFile) -> int:
    """Return the number of scans of an open JPEG file, 1 if the first scan has all components and pixels."""
    # Pillow has last read the header of the first scan, which starts with its number of components.
    whole = file.last[:1] == bytes([picture.layers]) and not picture.info.get("progressive")
    return 1 if whole else file.count(START_OF_SCAN)


def exif_bytes(data: bytes) -> int:
    """Return the bytes that Pillow copies from a block of EXIF data, 0 if it is none.

    Every tag names its length, and all of them may refer to the same bytes: 64 kB would become 350 MB.
    """
    block = data.removeprefix(b"Exif\0\0")
    order = {b"II": "<", b"MM": ">"}.get(block[:2])
    if order is None or len(block) < 8:
        return 0
    (start,) = struct.unpack_from(f"{order}L", block, 4)
    (count,) = struct.unpack_from(f"{order}H", block, start) if start + 2 <= len(block) else (0,)
    tags = block[start + 2 : start + 2 + 12 * count]
    entries = struct.iter_unpack(f"{order}2xHL4x", tags[: len(tags) // 12 * 12])
    return sum(min(8 * length, len(block)) for _, length in entries)  # no type is longer than 8 bytes
