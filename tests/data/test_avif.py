"""The pixels that an AVIF file has are known before they are decoded."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from apac.data.av1 import frame_pixels
from apac.data.avif import CodedPixels, coded_pixels
from apac.data.image_file import read_image
from apac.errors import InputError

pytestmark = pytest.mark.skipif(not features.check("avif"), reason="Pillow is built without AVIF")


def avif(mode: str = "RGB", size: tuple[int, int] = (100, 60), **options: Any) -> bytes:
    file = io.BytesIO()
    values = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 4), np.uint8)
    Image.fromarray(values, "RGBA").convert(mode).save(file, "AVIF", speed=10, **options)
    return file.getvalue()


def with_size(data: bytes, width: int, height: int) -> bytes:
    """Return a file whose container names another size than its pictures have."""
    at = data.index(b"ispe") + 8
    return data[:at] + struct.pack(">II", width, height) + data[at + 8 :]


@pytest.mark.parametrize("options", [{}, {"subsampling": "4:4:4"}, {"quality": 100}, {"icc_profile": bytes(200)}])
@pytest.mark.parametrize("size", [(1, 1), (17, 33), (640, 481)])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_the_pixels_are_those_that_pillow_wrote(mode, size, options):
    pixels = size[0] * size[1]
    assert coded_pixels(avif(mode, size, **options)) == CodedPixels(pixels, 2 * pixels if mode == "RGBA" else pixels)


def test_a_file_with_more_pixels_than_it_says_is_refused(tmp_path):
    (tmp_path / "a.avif").write_bytes(with_size(avif(size=(1500, 1000)), 100, 60))
    with Image.open(tmp_path / "a.avif") as file:
        assert file.size == (100, 60)
    with pytest.raises(InputError, match=r"has more than 0\.5 megapixels"):
        read_image(tmp_path / "a.avif", (3, 32, 32), max_pixels=1_000_000)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data.replace(b"iloc", b"iloo"), "headers are damaged"),
        (lambda data: data[: data.index(b"mdat") - 4] + b"\0\0\0\x10moov" + bytes(8), "a sequence of pictures"),
        (lambda data: data + b"\0\0\0\x10meta" + bytes(8), "a box occurs twice"),
        (lambda data: data.replace(b"iloc\0\0\0\0\x44", b"iloc\0\0\0\0\x40"), "lengths of its pictures are missing"),
        (lambda data: data.replace(b"iloc\0\0\0\0\x44\0\0\x01", b"iloc\0\0\0\0\x44\0\xff\xff"), "a table is cut"),
    ],
)
def test_a_damaged_file_is_refused(change, reason):
    with pytest.raises(ValueError, match=reason):
        coded_pixels(change(avif()))


def stream_of(data: bytes) -> bytes:
    return data[data.index(b"mdat") + 4 :]


def animation() -> bytes:
    """Return frames with full headers, which a still picture of Pillow's does not have."""
    file = io.BytesIO()
    frames = [Image.new("RGB", (40, 30), color) for color in ("red", "green", "blue")]
    frames[0].save(file, "AVIF", save_all=True, append_images=frames[1:], speed=10)
    return stream_of(file.getvalue())


def test_frames_with_full_headers_count():
    assert frame_pixels(animation()) == [1200, 1200, 1200]


def test_a_frame_with_a_size_of_its_own_is_refused():
    stream = bytearray(animation())
    at = stream.index(b"\x32") + 1  # a unit that is a frame, and has a size
    at += 2 if stream[at] >= 128 else 1
    assert stream[at] >> 2 == 0b000100  # a shown key frame without tools for screens
    stream[at] |= 0b10
    with pytest.raises(ValueError, match="a frame has a size of its own"):
        frame_pixels(bytes(stream))


def box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(content), kind) + content


def grid(side: int, tile: bytes) -> bytes:
    """Return the tables of a picture of 2 × 2 tiles, which say that it has `side` pixels a side, and the tiles."""
    numbers = range(1, 6)
    shape = bytes([0, 1, 1, 1]) + struct.pack(">II", side, side)
    types = [b"grid"] + 4 * [b"av01"]
    infos = b"".join(
        box(b"infe", struct.pack(">IHH4sx", 2 << 24, number, 0, kind))
        for number, kind in zip(numbers, types, strict=True)
    )
    places = [(8, len(shape)), *4 * [(8 + len(shape), len(tile))]]
    items = b"".join(struct.pack(">HHHII", number, 0, 1, *place) for number, place in zip(numbers, places, strict=True))
    tables = box(b"iinf", struct.pack(">IH", 0, 5) + infos) + box(b"iloc", struct.pack(">IHH", 0, 0x4400, 5) + items)
    return box(b"mdat", shape + tile) + box(b"meta", bytes(4) + tables)


def test_what_tiles_form_counts():
    tile = stream_of(avif(size=(100, 100)))
    assert coded_pixels(grid(200, tile)) == CodedPixels(40_000, 40_000)
    assert coded_pixels(grid(20_000, tile)).largest == 400_000_000


def test_too_many_items_are_refused_before_they_are_opened(tmp_path, monkeypatch):
    data = avif()
    at = data.index(b"meta") - 4
    size = int.from_bytes(data[at : at + 4], "big")
    many = box(b"meta", data[at + 8 : at + size] + box(b"free", bytes(70_000)))
    (tmp_path / "a.avif").write_bytes(data[:at] + many + data[at + size :])
    monkeypatch.setattr(Image, "open", None)
    with pytest.raises(InputError, match="too many parts; save it again"):
        read_image(tmp_path / "a.avif", (3, 32, 32))


def test_frames_that_are_hidden_count():
    data = avif()
    at, frame = data.index(b"mdat") + 4, data[data.index(b"mdat") + 4 :]
    (length,) = struct.unpack(">I", data[data.index(struct.pack(">I", at)) + 4 :][:4])
    assert length == len(frame)
    several = data[: data.index(struct.pack(">I", at)) + 4] + struct.pack(">I", 2 * length)
    several += data[len(several) :] + frame
    assert coded_pixels(several).total == 2 * coded_pixels(data).total == 12_000
