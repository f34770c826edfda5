"""The pixels that an AVIF file has are known before they are decoded."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

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


def test_frames_that_are_hidden_count():
    data = avif()
    at, frame = data.index(b"mdat") + 4, data[data.index(b"mdat") + 4 :]
    (length,) = struct.unpack(">I", data[data.index(struct.pack(">I", at)) + 4 :][:4])
    assert length == len(frame)
    several = data[: data.index(struct.pack(">I", at)) + 4] + struct.pack(">I", 2 * length)
    several += data[len(several) :] + frame
    assert coded_pixels(several).total == 2 * coded_pixels(data).total == 12_000
