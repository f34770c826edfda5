"""Image files that would take much time or memory are refused before, or read within bounds."""

from __future__ import annotations

import io
import logging
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from fuzz.tiff import DATA, tiff
from PIL import Image

from apac import limits
from apac.data.bounded_file import BoundedFile, exif_bytes
from apac.data.image_file import read_image
from apac.errors import InputError

COLOR = (3, 32, 32)
READS, MANY = 5000, 6000  # a smaller limit is sooner reached


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


PNG = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 100, 100, 8, 0, 0, 0, 0))


def jpeg(**options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(64 * 64, dtype=np.uint8).reshape(64, 64)).save(file, "JPEG", **options)
    return file.getvalue()


def exif(tags: int, length: int) -> bytes:
    """Return EXIF data in which every tag refers to the same bytes."""
    entries = b"".join(struct.pack("<HHLL", 300 + i, 1, length, 8) for i in range(tags))
    block = b"Exif\0\0II*\0" + struct.pack("<LH", 8, tags) + entries
    return block.ljust(min(65_000, 30 + max(length, len(block))), b"\0")


def with_segment(data: bytes, content: bytes) -> bytes:
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(content) + 2) + content + data[2:]


def with_scans(count: int) -> bytes:
    data = jpeg(progressive=True)
    last = data[data.rfind(b"\xff\xda") : -2]
    return data[:-2] + last * (count - data.count(b"\xff\xda")) + b"\xff\xd9"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("comment.ppm", b"P6\n#" + b"x" * MANY, "too many or too large headers"),
        ("chunks.png", PNG + chunk(b"abCd", b"") * MANY, "too many or too large headers"),
        ("pieces.png", PNG + chunk(b"IDAT", b"") * MANY, "too many or too large headers"),
        ("segments.jpg", b"\xff\xd8" + b"\xff\xe5\x00\x02" * MANY, "too many or too large headers"),
        ("profile.webp", b"RIFF\xff\xff\xff\x7fWEBPVP8 " + bytes(limits.HEADER_BYTES), "too many or too large headers"),
        ("tags.jpg", with_segment(jpeg(), exif(5000, 60_000)), "too many or too large headers"),
        ("text.pgm", b"P2 2000 2000 255\n" + b"9 " * 1000, "its pixels as text"),
        ("scans.jpg", with_scans(limits.SCANS + 1), "more than 32 scans"),
    ],
)
def test_a_file_that_would_take_long_is_refused(name, content, reason, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "READS", READS)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=reason) as caught:
        read_image(tmp_path / name, COLOR)
    assert "\n" not in str(caught.value)


def test_ordinary_headers_are_read(tmp_path):
    for content in (with_segment(jpeg(), exif(50, 4000)), with_scans(limits.SCANS), jpeg(progressive=True)):
        (tmp_path / "photo.jpg").write_bytes(content)
        assert read_image(tmp_path / "photo.jpg", COLOR)[0].shape == COLOR


def test_a_sparse_file_is_refused_by_its_size(tmp_path):
    with (tmp_path / "huge.bmp").open("wb") as file:
        file.truncate(4 * limits.PIXELS + 1)
    with pytest.raises(InputError, match="has more than 160 MB"):
        read_image(tmp_path / "huge.bmp", COLOR)
    with pytest.raises(InputError, match="cannot be read as an image"):  # more pixels may have more bytes
        read_image(tmp_path / "huge.bmp", COLOR, max_pixels=limits.PIXELS + 1)


@pytest.mark.parametrize(
    ("kind", "options", "per_pixel"),
    [("JPEG", {"progressive": True}, "JPEG"), ("JPEG", {}, None), ("AVIF", {}, "AVIF"), ("PNG", {}, None)],
)
def test_bytes_that_are_decoded_slowly_are_limited(kind, options, per_pixel, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "SLOW_BYTES", dict.fromkeys(limits.SLOW_BYTES, 1e-7))  # 4 bytes
    Image.new("RGB", (64, 64)).save(tmp_path / "picture", kind, **options)
    if per_pixel is None:
        assert read_image(tmp_path / "picture", COLOR)[0].shape == COLOR
        return
    with pytest.raises(InputError, match="MB; reduce it first"):
        read_image(tmp_path / "picture", COLOR)


def test_slow_encodings_and_long_rows_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "PYTHON_PIXELS", 50)
    header = struct.pack("<LLLHHLLLLLL", 40, 60, 1, 1, 8, 1, 0, 0, 0, 256, 0)
    (tmp_path / "lines.bmp").write_bytes(b"BM" + struct.pack("<LLL", 0, 0, 1078) + header + bytes(1024) + b"\0\0\0\1")
    Image.new("RGB", (64, 64)).save(tmp_path / "picture.tif", compression="lzma")
    Image.new("1", (1, limits.PICTURE_SIDE + 1)).save(tmp_path / "column.png")
    reasons = {"lines.bmp": "run-length", "picture.tif": "compressed by LZMA", "column.png": "200,000 pixels a side"}
    for name, reason in reasons.items():
        with pytest.raises(InputError, match=reason):
            read_image(tmp_path / name, COLOR)


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_center_of_a_panorama_is_what_it_is_alone(mode, channels, tmp_path):
    """It is cut out before it is converted, so that the whole is in memory only once."""
    bands = len(mode)
    pixels = np.random.default_rng(0).bytes(bands * 200 * 40)
    panorama = Image.frombytes(mode, (200, 40), pixels)
    panorama.save(tmp_path / "panorama.png")
    panorama.crop((80, 0, 120, 40)).save(tmp_path / "center.png")
    whole, notes = read_image(tmp_path / "panorama.png", (channels, 32, 32))
    alone, same = read_image(tmp_path / "center.png", (channels, 32, 32))
    assert whole.equal(alone)
    assert set(notes) - set(same) == {"cropped to the center", "resized from 200 × 40"}


def test_pixels_are_limited_and_the_limit_can_be_raised(tmp_path):
    Image.new("1", (300, 200)).save(tmp_path / "picture.png")
    Image.new("RGB", (300, 200)).save(tmp_path / "picture.webp")
    with pytest.raises(InputError, match=r"more than 0\.05 megapixels; reduce it first, or raise max_pixels"):
        read_image(tmp_path / "picture.png", COLOR, max_pixels=50_000)
    assert read_image(tmp_path / "picture.png", COLOR, max_pixels=60_000)[0].shape == COLOR
    with pytest.raises(InputError, match=r"more than 0\.03 megapixels"):  # its decoder takes twice the memory
        read_image(tmp_path / "picture.webp", COLOR, max_pixels=60_000)


def test_only_those_who_chose_the_limit_of_pixels_are_told_to_raise_it(tmp_path):
    Image.new("1", (10_000, 4_001)).save(tmp_path / "picture.png")
    with pytest.raises(InputError, match=r"more than 40 megapixels; reduce it first\.$"):
        read_image(tmp_path / "picture.png", COLOR)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "I;16"])
def test_a_large_picture_that_is_reduced_in_strips_looks_the_same(mode, tmp_path, monkeypatch):
    gradient = np.add.outer(np.arange(700), np.arange(900)) / 1600 * 255
    if mode == "I;16":
        picture = Image.fromarray((gradient * 257).astype(np.uint16))
    else:
        picture = Image.fromarray(gradient.astype(np.uint8)).convert(mode)
    picture.save(tmp_path / "large.png")
    whole = read_image(tmp_path / "large.png", COLOR)[0].int()
    monkeypatch.setattr("apac.data.decode.LARGE", 1000)
    strips = read_image(tmp_path / "large.png", COLOR)[0].int()
    # The palette has 1 color for every 1 to 2 gray values, and a strip is rounded to 8 bits before it is resized.
    assert (whole - strips).abs().max() <= 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (tiff(10, 10, {322: [46_000], 323: [46_000], 324: [400], 325: [9]}, b"x" * 500), "megapixels"),
        (tiff(2000, 16, {322: [16], 323: [1 << 20], 324: [900] * 125, 325: [9] * 125}, b"x" * 2000), "megapixels"),
        (tiff(10, 20, {278: [1], 273: [400] * 20, 279: [99] * 20}, b"x" * 500), "names more bytes than it has"),
    ],
    ids=["a large tile", "many long tiles", "strips that share bytes"],
)
def test_a_tiff_file_that_costs_more_than_its_pixels_is_refused(content, reason, tmp_path):
    (tmp_path / "a.tif").write_bytes(content)
    with pytest.raises(InputError, match=reason):
        read_image(tmp_path / "a.tif", COLOR)


def test_nothing_but_the_error_says_why_a_file_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as in a process that has not configured them
    (tmp_path / "a.tif").write_bytes(tiff(20, 20, {277: [515], 273: [DATA], 279: [50]}, bytes(50)))
    with pytest.raises(InputError, match="cannot be read as an image"):
        read_image(tmp_path / "a.tif", COLOR)
    assert capsys.readouterr().err == ""


def test_a_small_picture_in_a_tile_of_usual_size_is_read(tmp_path):
    pixels = zlib.compress(bytes(range(256)) * 256)
    content = tiff(20, 20, {322: [256], 323: [256], 324: [DATA], 325: [len(pixels)]}, pixels)
    (tmp_path / "a.tif").write_bytes(content)
    assert read_image(tmp_path / "a.tif", COLOR)[0].shape == COLOR


def test_a_name_that_no_file_can_have_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_image(tmp_path / ("x" * 300 + ".png"), COLOR)


def test_a_rotated_tiff_keeps_its_aspect(tmp_path):
    tags = Image.Exif()
    tags[0x0112] = 6
    picture = Image.new("RGB", (90, 30), (255, 0, 0))
    picture.save(tmp_path / "rotated.tif", exif=tags)
    image, notes = read_image(tmp_path / "rotated.tif", COLOR, fit="pad")
    assert image.shape == COLOR and "resized from 30 × 90" in notes


def test_the_bytes_of_tags_are_those_that_they_name():
    assert exif_bytes(b"not EXIF") == exif_bytes(b"") == exif_bytes(b"II*\0") == 0
    assert (
        exif_bytes(exif(10, 100)) == 10 * len(exif(10, 100).removeprefix(b"Exif\0\0"))
        or exif_bytes(exif(10, 100)) == 8000
    )


def test_a_pattern_is_counted_across_chunks(monkeypatch):
    monkeypatch.setattr("apac.data.bounded_file.CHUNK", 3)
    content = b"ab" * 5 + b"aab"
    file = BoundedFile(io.BytesIO(content), "a file")
    assert file.count(b"ab") == content.count(b"ab") == 6
    assert file.tell() == 0


def test_the_file_of_a_digit_may_be_a_large_photograph(tmp_path: Path):
    sheet = np.full((1500, 1600), 250, np.uint8)
    sheet[400:1100, 700:800] = 10
    Image.fromarray(sheet).save(tmp_path / "one.jpg")
    image = read_image(tmp_path / "one.jpg", (1, 28, 28), digit=True)[0]
    assert image.max() == 255 and 40 <= int((image > 127).sum()) <= 90


@pytest.fixture
def damaged_tiff(tmp_path: Path) -> Path:
    path = tmp_path / "damaged.tif"
    Image.fromarray(np.arange(64 * 64, dtype=np.uint8).reshape(64, 64)).save(path, compression="tiff_lzw")
    content = bytearray(path.read_bytes())
    content[20:200] = b"\xff" * 180
    path.write_bytes(content)
    return path


def test_a_damaged_tiff_file_is_refused_without_a_line_of_its_library(damaged_tiff, capfd):
    with pytest.raises(InputError, match="cannot be read as an image"):
        read_image(damaged_tiff, COLOR)
    assert capfd.readouterr().err == ""


def test_a_program_that_reads_a_damaged_tiff_file_otherwise_is_told_as_before(damaged_tiff):
    """In a process of its own: a server that another test has started keeps the library silent."""
    script = f"""
from contextlib import suppress
from PIL import Image
from apac.data.image_file import read_image, without_warnings
from apac.errors import InputError
first, second = without_warnings(), without_warnings()
first.__enter__()
second.__enter__()
with suppress(InputError):
    read_image({str(damaged_tiff)!r}, {COLOR})
first.__exit__(None, None, None)
second.__exit__(None, None, None)
print("ours", flush=True)
with suppress(OSError):
    Image.open({str(damaged_tiff)!r}).load()
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    before, _, after = done.stdout.partition("ours")
    assert before == "" and after.strip()
