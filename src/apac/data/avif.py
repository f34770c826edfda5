"""The pixels that a decoder of AVIF will decode, from the headers of the pictures inside the file.

The size that the container names, which Pillow reports, need not be that of the pictures: a file of 10 KB that says
100 × 100 may have 16,384 × 16,384 pixels. The decoder notices it after it has decoded them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

UNITS = 100_000  # of a file; a picture has three or four, and more if it has layers
PICTURE = b"av01"  # the type of an item that is a picture or a part of one: its colors, its transparency, a tile
SEQUENCE_HEADER, FRAME_HEADER, FRAME = 1, 3, 6  # types of units ("OBU") of AV1


@dataclass(frozen=True)
class CodedPixels:
    largest: int  # of a frame
    total: int  # of all frames


def coded_pixels(data: bytes) -> CodedPixels:
    """Return the pixels of the frames in an AVIF file of one picture. Raises ValueError if the file is damaged."""
    try:
        boxes = _boxes_by_type(memoryview(data))
        if b"moov" in boxes:
            raise ValueError("it is a sequence of pictures")
        inside = _boxes_by_type(boxes[b"meta"][4:])
        sources = (memoryview(data), inside.get(b"idat", memoryview(b"")))
        pictures = _picture_items(inside[b"iinf"])
        left, units, largest, total = 4 * len(data), UNITS, 0, 0
        for item in _located_items(inside[b"iloc"]):
            if item.number not in pictures or item.method >= len(sources):
                continue
            content = b"".join(sources[item.method][start:][:length] for start, length in item.extents)
            left -= len(content)
            frame, frames = 0, 0
            for kind, payload in _units(content):
                units -= 1
                if left < 0 or units < 0:
                    raise ValueError("its pictures share bytes")
                if kind == SEQUENCE_HEADER:
                    frame = max(frame, _frame_pixels(payload))
                frames += kind in (FRAME_HEADER, FRAME)
            largest, total = max(largest, frame), total + frame * max(frames, 1)
    except (KeyError, IndexError, struct.error) as error:
        raise ValueError("its headers are damaged") from error
    return CodedPixels(largest, total)


# The boxes of the container, ISO/IEC 14496-12


def _boxes_by_type(data: memoryview) -> dict[bytes, memoryview]:
    boxes: dict[bytes, memoryview] = {}
    for kind, content in _boxes(data):
        if kind in boxes and kind in (b"meta", b"iloc", b"iinf", b"idat"):
            raise ValueError("a box occurs twice")  # the decoder might take the other one
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


def _picture_items(iinf: memoryview) -> set[int]:
    """Return the numbers of the items that are pictures."""
    numbers = set()
    for kind, entry in _boxes(iinf[6 if iinf[0] == 0 else 8 :]):
        if kind == b"infe":
            number, _, item_type = struct.unpack_from(">HH4s" if entry[0] < 3 else ">IH4s", entry, 4)
            if item_type == PICTURE:
                numbers.add(number)
    return numbers


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


# The units of AV1: "AV1 Bitstream & Decoding Process Specification", sections 5.3 to 5.5


def _units(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the type and the payload of every unit; of frames, only some bytes are copied."""
    at = 0
    while at < len(data):
        header = data[at]
        at += 2 if header & 4 else 1
        size = len(data) - at
        if header & 2:
            size = 0
            for position in range(8):
                size |= (data[at] & 127) << 7 * position
                at += 1
                if data[at - 1] < 128:
                    break
        yield header >> 3 & 15, data[at : at + min(size, 200)]
        at += size


def _frame_pixels(header: bytes) -> int:
    """Return the largest size of a frame, from a sequence header."""
    bits = _Bits(header)
    bits.take(3)  # profile
    bits.take(1)  # still picture
    if bits.take(1):  # reduced header
        bits.take(5)
    else:
        _skip_operating_points(bits)
    width_bits, height_bits = bits.take(4) + 1, bits.take(4) + 1
    return (bits.take(width_bits) + 1) * (bits.take(height_bits) + 1)


def _skip_operating_points(bits: _Bits) -> None:
    delay_bits = 0
    if bits.take(1):  # timing
        bits.take(64)
        if bits.take(1):
            bits.skip_variable_length()
        if bits.take(1):  # decoder model
            delay_bits = bits.take(5) + 1
            bits.take(42)
    has_delay = bits.take(1)
    for _ in range(bits.take(5) + 1):
        bits.take(12)
        if bits.take(5) > 7:
            bits.take(1)
        if delay_bits and bits.take(1):
            bits.take(2 * delay_bits + 1)
        if has_delay and bits.take(1):
            bits.take(4)


class _Bits:
    def __init__(self, data: bytes) -> None:
        self.number, self.left = int.from_bytes(data, "big"), 8 * len(data)

    def take(self, count: int) -> int:
        self.left -= count
        if self.left < 0:
            raise ValueError("a header is cut")
        return self.number >> self.left & ((1 << count) - 1)

    def skip_variable_length(self) -> None:
        zeros = 0
        while not self.take(1):
            zeros += 1
        self.take(min(zeros, 32))
