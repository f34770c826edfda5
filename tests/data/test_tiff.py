"""The tiles and strips of a TIFF file are checked before they are decoded."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from fuzz.tiff import DATA, tiff
from PIL import Image

from apac import limits
from apac.data.image_file import read_image
from apac.errors import InputError

COLOR = (3, 32, 32)
DEEP = {258: [16] * 4, 262: [2], 277: [4], 338: [2]}  # 16-bit RGBA


@pytest.mark.parametrize(
    "content",
    [
        tiff(8000, 5000, DEEP | {278: [5000], 273: [DATA], 279: [9]}, b"x" * 99),
        tiff(8000, 5000, DEEP | {278: [(1 << 32) - 1], 273: [DATA], 279: [9]}, b"x" * 99),
        tiff(8000, 5000, DEEP | {273: [DATA], 279: [9]}, b"x" * 99),
        tiff(5000, 5000, DEEP | {322: [5008], 323: [5008], 324: [DATA], 325: [9]}, b"x" * 99),
        tiff(5000, 5000, DEEP | {322: [5008], 323: [5008], 273: [DATA], 279: [9]}, b"x" * 99),
        tiff(5000, 5000, {258: [8] * 3, 262: [6], 277: [3], 273: [DATA], 279: [9]}, b"x" * 99),
    ],
    ids=["a strip", "a strip of any height", "no height", "a tile", "a tile named a strip", "a strip of YCbCr"],
)
def test_a_tile_or_strip_of_tiff_takes_no_more_memory_than_a_picture(content, tmp_path):
    (tmp_path / "a.tif").write_bytes(content)
    with pytest.raises(InputError, match="has tiles or strips that take more than 160 MB; save it as PNG"):
        read_image(tmp_path / "a.tif", COLOR)


def test_those_who_allow_more_pixels_allow_larger_strips(tmp_path):
    (tmp_path / "a.tif").write_bytes(tiff(8000, 5000, DEEP | {273: [DATA], 279: [9]}, b"x" * 99))
    with pytest.raises(InputError, match="cannot be read as an image"):  # it is cut
        read_image(tmp_path / "a.tif", COLOR, max_pixels=2 * limits.PIXELS)


def test_several_large_tiles_are_counted_with_the_file_and_the_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "TIFF_BYTES", 5.0)
    tags = {258: [8] * 3, 262: [2], 277: [3]}
    strips = tiff(6000, 6000, tags | {278: [5000], 273: [DATA] * 2, 279: [9] * 2}, b"x" * 99)
    (tmp_path / "a.tif").write_bytes(strips)
    with pytest.raises(InputError, match="tiles or strips that take more than 56 MB"):
        read_image(tmp_path / "a.tif", COLOR)


@pytest.mark.parametrize("rows", [64, 16, (1 << 32) - 1])
def test_deep_strips_of_usual_size_are_read(rows, tmp_path):
    strips = -(-64 // rows)
    pixels = zlib.compress(bytes(64 * min(rows, 64) * 8))
    places = [DATA + i * len(pixels) for i in range(strips)]
    content = tiff(64, 64, DEEP | {278: [rows], 273: places, 279: [len(pixels)] * strips}, pixels * strips)
    (tmp_path / "a.tif").write_bytes(content)
    assert read_image(tmp_path / "a.tif", COLOR)[0].shape == COLOR


def edited(content: bytes, tag: int, entry: bytes) -> bytes:
    """Return a TIFF file with another entry for a tag."""
    at = content.rindex(struct.pack("<HH", tag, 4))
    return content[:at] + entry + content[at + 12 :]


@pytest.mark.parametrize(
    "entry",
    [(278, 4, 1, 16), (305, 13, 1, 16), (305, 11, 1, 0), (305, 4, 2, DATA), (305, 1, 1, 57)],
    ids=["twice", "a directory", "a fraction", "two numbers", "text"],
)
def test_tags_that_pillow_and_libtiff_read_differently_are_refused(entry, tmp_path):
    content = tiff(64, 64, {278: [64], 273: [DATA], 279: [60], 305: [0]}, zlib.compress(bytes(64 * 64)).ljust(60))
    tag, kind, count, value = entry
    if tag == 305:  # instead of the height of the strip
        content = edited(content, 278, struct.pack("<HHLL", 278, kind, count, value))
    else:  # after it
        content = edited(content, 305, struct.pack("<HHLL", *entry))
    (tmp_path / "a.tif").write_bytes(content)
    with pytest.raises(InputError, match="has damaged tags"):
        read_image(tmp_path / "a.tif", COLOR)


def jpeg(**options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(64 * 64, dtype=np.uint8).reshape(64, 64)).save(file, "JPEG", **options)
    return file.getvalue()


def with_scans(count: int) -> bytes:
    data = jpeg(progressive=True)
    last = data[data.rfind(b"\xff\xda") : -2]
    return data[:-2] + last * (count - data.count(b"\xff\xda")) + b"\xff\xd9"


def jpeg_tiff(*strips: bytes) -> bytes:
    places = [DATA + sum(map(len, strips[:i])) for i in range(len(strips))]
    lengths = [len(strip) for strip in strips]
    return tiff(64, 64 * len(strips), {259: [7], 278: [64], 273: places, 279: lengths}, b"".join(strips))


def test_scans_of_jpeg_in_tiff_are_limited_in_each_strip(tmp_path):
    path = tmp_path / "a.tif"
    path.write_bytes(jpeg_tiff(*[jpeg()] * 40))  # more strips than scans that are allowed
    assert read_image(path, COLOR)[0].shape == COLOR
    path.write_bytes(jpeg_tiff(jpeg(), with_scans(limits.SCANS)))
    assert read_image(path, COLOR)[0].shape == COLOR
    path.write_bytes(jpeg_tiff(jpeg(), with_scans(limits.SCANS + 1)))
    with pytest.raises(InputError, match="more than 32 scans; save it again, as PNG"):
        read_image(path, COLOR)


def test_bytes_and_memory_of_jpeg_with_several_scans_in_tiff_are_limited(tmp_path, monkeypatch):
    several = jpeg(progressive=True)
    first = several[: several.index(b"\xff\xda", several.index(b"\xff\xda") + 2)]  # the others are cut off
    whole, path = jpeg(), tmp_path / "a.tif"
    monkeypatch.setattr(limits, "SLOW_BYTES", dict.fromkeys(limits.SLOW_BYTES, 1e-7))  # 4 bytes
    path.write_bytes(jpeg_tiff(whole, whole))
    assert read_image(path, COLOR)[0].shape == COLOR
    for strip in (several, first):
        path.write_bytes(jpeg_tiff(whole, strip))
        with pytest.raises(InputError, match="MB; reduce it first"):
            read_image(path, COLOR)
    monkeypatch.undo()
    monkeypatch.setattr(limits, "TILE_BYTES", 2 * 64 * 64 / limits.PIXELS)
    for strip in (several, first):
        path.write_bytes(jpeg_tiff(strip))
        with pytest.raises(InputError, match="tiles or strips that take more than"):
            read_image(path, COLOR)
    path.write_bytes(jpeg_tiff(whole))
    assert read_image(path, COLOR)[0].shape == COLOR
