"""Image files at the limits: some that must be refused, and the largest that are read, in what takes most memory."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from apac import limits
from fuzz.tiff import DATA, tiff

SIZE = (8_000, 5_000)  # just allowed
HALF = (8_000, 2_500)  # just allowed in WebP and AVIF
SMALL = (200, 100)
MANY = 2_000_000  # pieces of a header

Write = Callable[[Path], object]


def refused() -> dict[str, Write]:
    """Return how files are written that must be refused, by their names."""
    return {
        "comment.ppm": _bytes(lambda: b"P6\n#" + b"x" * (60 << 20)),
        "levels.ppm": _bytes(lambda: b"P6 8000 5000 100\n" + bytes(120_000_000)),
        "text.ppm": _bytes(lambda: b"P3 1000 501 255\n" + b"9 " * 1_503_000),
        "cut-text.ppm": _bytes(lambda: b"P3 1000 500 255\n" + b"000000009 " * 1_499_999),
        "cut.ppm": _bytes(lambda: _noise("RGB", SIZE, "PPM")[:-9]),
        "float.pfm": _bytes(lambda: b"Pf\n8000 5000\n-1.0\n" + bytes(120_000_000)),
        "chunks.png": _bytes(lambda: _png(*SIZE, 8, 6) + _chunk(b"abCd", b"") * MANY),
        "texts.png": _bytes(lambda: _png(*SIZE, 8, 6) + _chunk(b"zTXt", b"key\0\0" + _zeros(1_000_000)) * 70),
        "pieces.png": _bytes(lambda: _png(*SIZE, 8, 6) + _chunk(b"IDAT", b"") * MANY),
        "bytes.png": _bytes(lambda: _png(1000, 1000, 8, 0) + _pieces(_zeros(1_001_000, level=0))),
        "cut-16-bit.png": _bytes(lambda: _png(*SIZE, 16, 6) + _chunk(b"IDAT", _zeros(8 * 8000 * 4999))),
        "cut.png": _bytes(lambda: _noise("RGB", SIZE, "PNG", compress_level=1)[:-2000]),
        "row.png": _blank_file("RGBA", (40_000_000, 1)),
        "segments.jpg": _bytes(lambda: b"\xff\xd8" + b"\xff\xe5\x00\x02" * MANY),
        "comments.jpg": _bytes(lambda: b"\xff\xd8" + (b"\xff\xfe\xff\xff" + bytes(65_533)) * 900),
        "tags.jpg": _bytes(lambda: b"\xff\xd8" + _exif(5_000, 60_000) + _blank("L", SMALL, "JPEG")[2:]),
        "scans.jpg": _bytes(lambda: _scans(_blank("L", SIZE, "JPEG", progressive=True), limits.SCANS + 1)),
        "cut-scans.jpg": _bytes(lambda: _scans(_blank("CMYK", SIZE, "JPEG", progressive=True), limits.SCANS)[:-2000]),
        "cut-noise.jpg": _bytes(lambda: _scans(_noise("L", SIZE, "JPEG", progressive=True), 8)[:-2000]),
        "long-scans.jpg": _bytes(lambda: _scans(_noise("L", SIZE, "JPEG", progressive=True), 20)),
        "chunk.webp": _bytes(lambda: b"RIFF\xff\xff\xff\x7fWEBPVP8 " + bytes(limits.HEADER_BYTES)),
        "spoiled.webp": _bytes(lambda: _spoiled(_noise("RGBA", (4_800, 2_500), "WEBP", **LOSSLESS))),
        "spoiled.avif": _bytes(lambda: _spoiled(_noise("RGBA", (4_000, 2_000), "AVIF", speed=10, quality=60))),
        "garbage.avif": _bytes(lambda: _blank("RGB", SMALL, "AVIF")[:200] + bytes(40 << 20)),
        "size.avif": _bytes(lambda: _small_size(_blank("RGB", (12_000, 12_000), "AVIF", speed=10))),
        "strips.tif": _bytes(lambda: _strips(11_000_000)),
        "tags.tif": _bytes(_many_tags),
        "samples.tif": _bytes(lambda: tiff(20, 20, {277: [515], 273: [DATA], 279: [50]}, bytes(50))),
        "cut-rotated.tif": _bytes(lambda: _blank("CMYK", SIZE, "TIFF", exif=_rotated())[:-200]),
        "spoiled.tif": _bytes(lambda: _spoiled(_noise("RGB", (7_600, 5_000), "TIFF", compression="tiff_lzw"))),
        "lzma.tif": _bytes(lambda: _blank("RGB", SIZE, "TIFF", compression="lzma")),
        "16-bit-strip.tif": _bytes(lambda: _deep_tiff(*SIZE, {278: [5_000]})),
        "16-bit-tile.tif": _bytes(lambda: _deep_tiff(6_300, 6_300, {322: [8_944], 323: [8_928]})),
        "cut-strip.tif": _bytes(lambda: _deep_tiff(*SIZE, {258: [8] * 4, 278: [5_000]})),
        "jpeg-scans.tif": _bytes(lambda: _jpeg_tiff(_scans(_blank("L", SIZE, "JPEG", progressive=True), 33))),
        "jpeg-cut-scans.tif": _bytes(
            lambda: _jpeg_tiff(_scans(_blank("L", SIZE, "JPEG", progressive=True), 32)[:-200])
        ),
        "jpeg-long-scans.tif": _bytes(lambda: _jpeg_tiff(_scans(_noise("L", SIZE, "JPEG", progressive=True), 20))),
        "float.tif": lambda path: Image.fromarray(np.zeros((5_000, 7_900), np.float32)).save(path),
        "comments.gif": _bytes(lambda: _gif(*SIZE) + b"!\xfe" + (b"\xff" + bytes(255)) * 500_000),
        "lines.bmp": _bytes(lambda: _bmp(200_000, 200) + b"\x01\x07\x00\x00\x00\x01"),
        "cut.bmp": _bytes(lambda: _blank("RGB", SIZE, "BMP")[:-200]),
        "sparse.bmp": _sparse,
        **{f"above.{kind}": _blank_file("L", (8_000, 5_001)) for kind in ("png", "jpg", "tif", "gif", "bmp", "pgm")},
        **{f"above.{kind}": _blank_file("RGBA", (8_000, 2_501), **options) for kind, options in HALVED.items()},
        **{f"frames.{kind}": _frames("RGB", SMALL) for kind in ("gif", "png", "webp", "avif")},
        "frames.tif": _frames("CMYK", (1_500, 5_000)),
    }


def read() -> dict[str, Write]:
    """Return how files are written that are just within the limits."""
    return {
        "1-bit.png": _blank_file("1", SIZE),
        "palette.png": _blank_file("P", SIZE, transparency=3),
        "noise.png": _bytes(lambda: _noise("RGBA", (7_900, 5_000), "PNG", compress_level=1)),
        "16-bit.png": _bytes(lambda: _noise("I;16", SIZE, "PNG", compress_level=1)),
        "16-bit-rgba.png": _bytes(_deep_png),
        "panorama.png": _blank_file("RGBA", (200_000, 200)),
        "photo.jpg": _bytes(lambda: _noise("RGB", SIZE, "JPEG", quality=95, subsampling=0)),
        "progressive.jpg": _bytes(lambda: _noise("RGB", SIZE, "JPEG", progressive=True)),
        "cmyk.jpg": _bytes(lambda: _scans(_blank("CMYK", SIZE, "JPEG", progressive=True), limits.SCANS)),
        "rotated.tif": _bytes(lambda: _blank("CMYK", (7_990, 5_000), "TIFF", exif=_rotated())),
        "lzw.tif": _bytes(lambda: _noise("RGB", (7_600, 5_000), "TIFF", compression="tiff_lzw")),
        "strip.tif": _bytes(lambda: _strip_tiff(np.random.default_rng(0).bytes(24_000) * 5_000)),
        "16-bit.tif": _bytes(lambda: _noise("I;16", SIZE, "TIFF")),
        "palette.gif": _blank_file("P", SIZE),
        "rgba.bmp": _blank_file("RGBA", (7_990, 5_000)),
        "text.ppm": _bytes(lambda: b"P3 1000 500 255\n" + b"000000009 " * 1_500_000),
        "noise.ppm": _bytes(lambda: _noise("RGB", SIZE, "PPM")),
        "noise.webp": _bytes(lambda: _noise("RGBA", (4_800, 2_500), "WEBP", **LOSSLESS)),
        "rgba.webp": _blank_file("RGBA", HALF, **LOSSLESS),
        "rgba.avif": _blank_file("RGBA", HALF, speed=10),
        "noise.avif": _bytes(lambda: _noise("RGBA", (4_000, 2_000), "AVIF", speed=10, quality=60)),
    }


LOSSLESS: dict[str, Any] = {"lossless": True, "quality": 0, "method": 0}
HALVED: dict[str, dict[str, Any]] = {"webp": LOSSLESS, "avif": {"speed": 10}}


def _bytes(make: Callable[[], bytes]) -> Write:
    return lambda path: path.write_bytes(make())


def _blank_file(mode: str, size: tuple[int, int], **options: Any) -> Write:
    return lambda path: Image.new(mode, size).save(path, **options)


def _blank(mode: str, size: tuple[int, int], kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size).save(file, kind, **options)
    return file.getvalue()


def _noise(mode: str, size: tuple[int, int], kind: str, **options: Any) -> bytes:
    file, (width, height) = io.BytesIO(), size
    bands = {"L": 1, "I;16": 2, "RGB": 3, "RGBA": 4}[mode]
    pixels = np.random.default_rng(0).bytes(bands * width * height)
    Image.frombytes(mode, size, pixels).save(file, kind, **options)
    return file.getvalue()


def _frames(mode: str, size: tuple[int, int]) -> Write:
    def write(path: Path) -> None:
        first, *others = (Image.new(mode, size, color) for color in ("black", "white", "black"))
        first.save(path, save_all=True, append_images=others)

    return write


def _spoiled(data: bytes) -> bytes:
    """Return a file that is damaged near its end."""
    place = len(data) * 95 // 100
    return data[:place] + b"\xff" * 2_000 + data[place + 2_000 :]


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(300_000_000)


# PNG


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(width: int, height: int, bits: int, color: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0))


def _zeros(size: int, level: int = 1) -> bytes:
    return zlib.compress(bytes(size), level)


def _pieces(data: bytes) -> bytes:
    return b"".join(_chunk(b"IDAT", data[i : i + 1]) for i in range(len(data)))


def _deep_png() -> bytes:
    width, height = SIZE
    return _png(width, height, 16, 6) + _chunk(b"IDAT", _zeros((1 + 8 * width) * height)) + _chunk(b"IEND", b"")


# JPEG and EXIF


def _exif(tags: int, length: int) -> bytes:
    """Return a segment in which every tag refers to the same bytes."""
    entries = b"".join(struct.pack("<HHLL", 300 + i, 1, length, 8) for i in range(tags))
    content = (b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", tags) + entries).ljust(65_000, b"\0")
    return b"\xff\xe1" + struct.pack(">H", len(content) + 2) + content


def _scans(data: bytes, count: int) -> bytes:
    """Repeat the last scan of a progressive file."""
    last = data[data.rfind(b"\xff\xda") : -2]
    return data[:-2] + last * (count - data.count(b"\xff\xda")) + b"\xff\xd9"


def _rotated() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


# AVIF, TIFF, GIF and BMP


def _small_size(data: bytes) -> bytes:
    """Return an AVIF file that says that it has 100 × 100 pixels."""
    at = data.index(b"ispe") + 8
    return data[:at] + struct.pack(">II", 100, 100) + data[at + 8 :]


def _tiff(width: int, height: int, tags: list[tuple[int, int, int, int]], data: bytes) -> bytes:
    """Return a gray picture with tags (number, type, count, value), whose data begin at byte 8."""
    fields = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (277, 3, 1, 1)]
    entries = b"".join(struct.pack("<HHLL", *tag) for tag in sorted(fields + tags))
    end = struct.pack("<H", len(fields + tags)) + entries + bytes(4)
    return b"II*\0" + struct.pack("<L", 8 + len(data)) + data + end


def _strips(count: int) -> bytes:
    """Return a picture of one pixel in width, each of which is a strip."""
    return _tiff(1, count, [(278, 4, 1, 1), (273, 4, count, 8), (279, 4, 1, count)], bytes(4 * count))


def _many_tags() -> bytes:
    """Return a picture whose tags all refer to the same four million bytes."""
    others = [(40_000 + number, 3, 2_000_000, 8) for number in range(20_000)]
    return _tiff(9, 9, [(278, 4, 1, 9), (273, 4, 1, 8), (279, 4, 1, 81), *others], bytes(4_000_000))


def _deep_tiff(width: int, height: int, tags: dict[int, list[int]]) -> bytes:
    """Return a picture of 16-bit RGBA in one tile or strip, which is cut."""
    bits = tags.get(258, [16])[0]
    across, down = tags.get(322, [width])[0], tags.get(323, [height])[0]
    data = _zeros(across * down * bits // 2)
    data = data[: len(data) * 9 // 10]
    place, length = (324, 325) if 322 in tags else (273, 279)
    colors = {258: [bits] * 4, 262: [2], 277: [4], 338: [2], place: [DATA], length: [len(data)]}
    return tiff(width, height, colors | tags, data)


def _strip_tiff(pixels: bytes) -> bytes:
    """Return an RGB picture in one strip, as some software writes it."""
    data = zlib.compress(pixels, 1)
    return tiff(*SIZE, {258: [8] * 3, 262: [2], 277: [3], 278: [SIZE[1]], 273: [DATA], 279: [len(data)]}, data)


def _jpeg_tiff(data: bytes) -> bytes:
    """Return a gray picture in one strip, which is a JPEG file."""
    return tiff(*SIZE, {259: [7], 278: [SIZE[1]], 273: [DATA], 279: [len(data)]}, data)


def _gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0xF7, 0, 0) + bytes(768)


def _bmp(width: int, height: int) -> bytes:
    """Return the header of a run-length encoded picture, which Pillow decodes in Python."""
    header = struct.pack("<LLLHHLLLLLL", 40, width, height, 1, 8, 1, 0, 0, 0, 256, 0)
    return b"BM" + struct.pack("<LLL", 0, 0, 14 + 40 + 1024) + header + bytes(1024)
