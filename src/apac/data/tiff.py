"""What a decoder of TIFF will take for a file, from its tags.

libtiff decodes one tile or strip at a time as a whole, which may be larger than the picture, have 8 bytes for each
pixel, or contain a JPEG file of its own.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from apac.data.bounded_file import START_OF_SCAN, BoundedFile

PHOTOMETRIC, SAMPLES, ROWS, PLANAR, TILE_WIDTH, TILE_HEIGHT = 262, 277, 278, 284, 322, 323
BITS, OFFSETS, COUNTS = 258, (324, 273), (325, 279)  # of tiles, of strips
SINGLE = (256, 257, 259, PHOTOMETRIC, SAMPLES, ROWS, PLANAR, TILE_WIDTH, TILE_HEIGHT)  # tags with one value
TYPES = (3, 4, 16)  # of the integers in these tags: 2, 4 or 8 bytes
YCBCR, SEPARATE = 6, 2
JPEG, OLD_JPEG = "jpeg", "tiff_jpeg"
PROGRESSIVE = (b"\xff\xc2", b"\xff\xca")


@dataclass(frozen=True)
class Layout:
    """How a picture is divided into tiles or strips."""

    count: int
    side: int  # of a tile
    pixels: int  # of all tiles, of which the last ones may extend beyond the picture
    named_bytes: int  # of the file, by the lengths of all tiles or strips
    piece_bytes: int  # in memory while a tile or strip is decoded; 0 if none is decoded as a whole
    scans: int  # of a tile or strip, if they are JPEG; 1 if its first scan has all components and pixels


def layout(file: Any, content: BoundedFile, max_count: int) -> Layout:
    """Return how an open TIFF file is divided; scans are counted if it has at most `max_count` tiles or strips.

    Raises ValueError if its tags are damaged, or if Pillow and libtiff may take different values from them.
    """
    tags, compression = file.tag_v2, file.info.get("compression")
    _check_tags(tags, content)
    width, height = tags[256], tags[257]
    tiled = TILE_WIDTH in tags or TILE_HEIGHT in tags
    across = tags.get(TILE_WIDTH, 0) if tiled else width
    down = tags.get(TILE_HEIGHT, 0) if tiled else min(tags.get(ROWS) or height, height)
    if min(across, down) < 1:
        raise ValueError("a tile has no pixels")
    samples, bits = tags.get(SAMPLES, 3 if compression == OLD_JPEG else 1), max(tags.get(BITS, (1,)))
    planes = samples if tags.get(PLANAR) == SEPARATE else 1
    places = -(-width // across) * -(-height // down)
    offsets, lengths = (next((tags[tag] for tag in pair if tag in tags), ()) for pair in (OFFSETS, COUNTS))
    if not lengths and compression != "raw":
        lengths = (content.size(),) * min(len(offsets), max_count)  # as libtiff assumes
    scans = 1
    if compression == JPEG and places * planes <= max_count:
        pieces = zip(offsets[: places * planes], lengths, strict=False)
        scans = max((_scans(content, *piece, samples // planes) for piece in pieces), default=1)
    elif compression == OLD_JPEG:  # whose scans need not be in the strips
        scans = _scans(content, 0, content.size(), samples // planes)
    taken = -(-across * bits * (samples // planes) // 8) * down
    taken *= 3 if scans > 1 else 1  # the decoder of JPEG holds all coefficients, of 2 bytes
    if compression == OLD_JPEG or (tags.get(PHOTOMETRIC) == YCBCR and (compression != JPEG or planes > 1)):
        taken += 4 * width * min(down, height)  # libtiff converts them to RGBA
    return Layout(
        places * planes,
        max(across, down) if tiled else 0,
        across * down * places if tiled else 0,
        sum(lengths),
        0 if compression == "raw" else taken,
        scans,
    )


def _check_tags(tags: Any, content: BoundedFile) -> None:
    """Raise ValueError unless each tag that matters occurs once, and is an integer or a list of them.

    Of a tag that occurs twice, Pillow takes the last and libtiff the first. From other types they may take different
    values.
    """
    order = {b"II": "<", b"MM": ">"}[tags.prefix]
    start = content.start(4)
    count, entry = ("Q", "HHQ8x") if start[2] == 43 else ("H", "HHL4x")  # BigTIFF, as Pillow tells it
    size = struct.calcsize(order + count)
    (number,) = struct.unpack(order + count, content.part(tags.offset, size))
    if number > 4096:  # as libtiff allows
        raise ValueError("there are too many tags")
    directory = content.part(tags.offset + size, number * struct.calcsize(order + entry))
    seen: set[int] = set()
    for tag, kind, values in struct.iter_unpack(order + entry, directory):
        if tag not in (*SINGLE, BITS, *OFFSETS, *COUNTS):
            continue
        key = {324: 273, 325: 279}.get(tag, tag)  # libtiff takes tiles for strips
        if key in seen or kind not in TYPES or (tag in SINGLE and values != 1) or tag not in tags:
            raise ValueError(f"tag {tag} is damaged")
        seen.add(key)
    if not {256, 257} <= seen:
        raise ValueError("the size is missing")


def _scans(content: BoundedFile, offset: int, length: int, components: int) -> int:
    """Return the scans of a JPEG file within a file, 1 if the first scan has all components and pixels."""
    found = content.count(START_OF_SCAN, offset, length)
    if found != 1:
        return max(found, 1)
    header, _, scan = content.part(offset, min(length, 1 << 20)).partition(START_OF_SCAN)
    whole = scan[2:3] == bytes([components]) and not any(marker in header for marker in PROGRESSIVE)
    return 1 if whole else 2  # of which the decoder waits for the others
