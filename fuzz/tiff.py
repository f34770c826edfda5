"""TIFF files by their tags, among them those that Pillow does not write."""

from __future__ import annotations

import struct

DATA = 8  # the byte at which the data begin


def tiff(width: int, height: int, tags: dict[int, list[int]], data: bytes) -> bytes:
    """Return a gray TIFF file, compressed by deflate, with further tags (273 and 279 are strips, 322 to 325 tiles)."""
    entries = {256: [width], 257: [height], 258: [8], 259: [8], 262: [1], 277: [1]} | tags
    data += bytes(len(data) % 2)
    start = DATA + len(data)
    fields, lists = b"", b""
    for tag, values in sorted(entries.items()):
        place = values[0] if len(values) == 1 else start + 2 + 12 * len(entries) + 4 + len(lists)
        lists += struct.pack(f"<{len(values)}L", *values) if len(values) > 1 else b""
        fields += struct.pack("<HHLL", tag, 4, len(values), place)
    return b"II*\0" + struct.pack("<L", start) + data + struct.pack("<H", len(entries)) + fields + bytes(4) + lists
