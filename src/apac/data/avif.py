"""The pixels that a decoder of AVIF will decode, from the headers of the pictures inside the file.

The size that the container names, which Pillow reports, need not be that of the pictures: a file of 10 KB that says
100 × 100 may have 16,384 × 16,384 pixels. The decoder notices it after it has decoded them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from apac import limits
from apac.data.av1 import frame_pixels

PICTURE, GRID = b"av01", b"grid"  # types of items: a picture or a part of one, or how parts form one
ONCE = (b"meta", b"iloc", b"iinf", b"idat", b"iprp", b"ipco")  # of a second one, the decoder might take the other


@dataclass(frozen=True)
class CodedPixels:
    largest: int  # of a frame, or of what the parts of a grid form
    total: int  # of all frames


def coded_pixels(data: bytes) -> CodedPixels:
    """Return the pixels of the frames in an AVIF file of one picture.

    Raises ValueError if the file is damaged, or has more tables than a picture needs.
    """
    boxes = _boxes_by_type(memoryview(data))
    if b"moov" in boxes:
        raise ValueError("it is a sequence of pictures")
    if b"meta" not in boxes:
        raise ValueError("its headers are damaged")
    meta = boxes[b"meta"][4:]
    inside = _boxes_by_type(meta)
    properties = _boxes_by_type(inside.get(b"iprp", memoryview(b""))).get(b"ipco", memoryview(b""))
    profiles = sum(len(content) for kind, content in _boxes(properties) if kind == b"colr")
    if len(meta) - len(inside.get(b"idat", b"")) - profiles > limits.AVIF_TABLE_BYTES:
        raise ValueError("it has too many parts")
    try:
        items = _located_items(inside[b"iloc"])
        return _of_items(items, _item_types(inside[b"iinf"]), (data, inside.get(b"idat", b"")))
    except (KeyError, IndexError, struct.error) as error:
        raise ValueError("its headers are damaged") from error


def _of_items(
    items: Iterable[_Item], types: set[tuple[int, bytes]], sources: Sequence[bytes | memoryview]
) -> CodedPixels:
    left, largest, total = 4 * len(sources[0]), 0, 0
    for item in items:
        if item.method >= len(sources) or not {(item.number, PICTURE), (item.number, GRID)} & types:
            continue
        source = sources[item.method]
        left -= sum(min(length, len(source)) for _, length in item.extents)
        if left < 0:
            raise ValueError("its pictures share bytes")
        content = b"".join(source[start:][:length] for start, length in item.extents)
        if (item.number, GRID) in types:
            width, height = struct.unpack_from(">II" if content[1] & 1 else ">HH", content, 4)
            largest = max(largest, width * height)
        if (item.number, PICTURE) in types:
            frames = frame_pixels(content)
            largest, total = max(largest, *frames, 0), total + sum(frames)
    return CodedPixels(largest, total)


# The boxes of the container, ISO/IEC 14496-12


def _boxes_by_type(data: memoryview) -> dict[bytes, memoryview]:
    boxes: dict[bytes, memoryview] = {}
    for kind, content in _boxes(data):
        if kind in boxes and kind in ONCE:
            raise ValueError("a box occurs twice")
        boxes[kind] = content
    return boxes


def _boxes(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the type and the content of every box; the last one may be cut, or be no box."""
    at = 0
    while at + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        start = at + 8
        if size == 1:
            (size,) = struct.unpack_from(">Q", data, start)
            start += 8
        end = at + size if size else len(data)
        yield kind, data[start:end]
        at = max(start, end)


def _item_types(iinf: memoryview) -> set[tuple[int, bytes]]:
    """Return the numbers and types of the items."""
    types = set()
    for kind, entry in _boxes(iinf[6 if iinf[0] == 0 else 8 :]):
        if kind == b"infe":
            number, _, item_type = struct.unpack_from(">HH4s" if entry[0] < 3 else ">IH4s", entry, 4)
            types.add((number, item_type))
    return types


@dataclass(frozen=True)
class _Item:
    number: int
    method: int  # 0: places in the file, 1: in the box of the items' data
    extents: list[tuple[int, int]]  # start and length


def _located_items(iloc: memoryview) -> Iterator[_Item]:
    """Yield where the items are. The widths of the numbers are the file's own."""
    fields = _Fields(iloc)
    version = fields.take(1)
    fields.take(3)
    sizes = fields.take(2)
    offset_size, length_size, base_size = sizes >> 12, sizes >> 8 & 15, sizes >> 4 & 15
    index_size = sizes & 15 if version else 0
    if not length_size:
        raise ValueError("the lengths of its pictures are missing")
    wide = 4 if version == 2 else 2
    for _ in range(fields.take(wide)):
        number = fields.take(wide)
        method = fields.take(2) & 15 if version else 0
        fields.take(2)
        base = fields.take(base_size)
        extents = []
        for _ in range(fields.take(2)):
            fields.take(index_size)
            start, length = fields.take(offset_size), fields.take(length_size)
            extents.append((base + start, length))
        yield _Item(number, method, extents)


class _Fields:
    """Numbers of given widths in bytes, one after the other."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> int:
        if self.at + size > len(self.data):
            raise ValueError("a table is cut")
        self.at += size
        return int.from_bytes(self.data[self.at - size : self.at], "big")
