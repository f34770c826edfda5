"""Decode an image file, within limits of pixels, memory and time."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np
from PIL import Image

from apac import limits
from apac.data.avif import coded_pixels
from apac.data.bounded_file import BoundedFile, exif_bytes, scans
from apac.data.tiff import layout
from apac.errors import InputError

# A large picture is first reduced to no less than this multiple of the result, by a faster method: a JPEG file while it
# is decoded. The pixels differ by less than 1 of 255 on average; a photo of 12 megapixels takes a quarter of the time.
MARGIN = 3
LARGE = 8_000_000  # pixels; such a picture is reduced in strips, so that it is in memory only once
STRIP = 256  # rows
MAX_SIDE = 1024  # pixels; a larger image adds nothing to a digit of 28 × 28
TRANSPOSE = {  # by EXIF orientation
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
AVIF_STARTS = (b"ftypavif", b"ftypavis", b"ftypmif1", b"ftypmsf1")  # which Pillow takes for AVIF
IN_PYTHON = ("ppm_plain", "bmp_rle")  # decoders of Pillow
OTHER_MODES = ("1", "P", "PA", "La", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV")

Decoded = tuple[Image.Image, tuple[int, int], list[str]]  # the picture, the size of the file, and notes


def load_picture(
    name: str, content: IO[bytes], formats: tuple[str, ...], side: int | None, crop: bool, max_pixels: int | None
) -> Decoded:
    """Return the upright picture in mode L, LA, RGB, RGBA, or F in [0, 255] for 16-bit gray; its size; and notes.

    If the picture is to be fitted to a square of `side` pixels, a large JPEG file is decoded at a smaller size, and a
    large picture is reduced; the returned size is that of the file.
    """
    bounded = BoundedFile(content, name)
    _check_bytes(name, bounded, limits.FILE_BYTES, max_pixels)
    if bounded.start(12)[4:] in AVIF_STARTS:
        _check_avif(name, bounded, max_pixels)
    with Image.open(bounded, formats=formats) as file:  # type: ignore[arg-type]
        _check_size(name, file, bounded, max_pixels)
        bounded.allow_pixels()
        size = file.size
        reference = min(size) if side is not None and crop else max(size)  # becomes `side` pixels long
        wanted = MAX_SIDE if side is None else MARGIN * side
        file.draft(None, tuple(max(1, wanted * length // reference) for length in size))  # type: ignore[arg-type]
        file.load()
        orientation = _orientation(file)
        if file.format == "TIFF":  # which Pillow has rotated
            size = file.size
        notes = ["rotated according to its EXIF orientation"] if orientation in TRANSPOSE else []
        reduced = _reduced(name, file, max(1, reference // wanted))
    upright = reduced.transpose(TRANSPOSE[orientation]) if orientation in TRANSPOSE else reduced
    width, height = size
    return upright, (height, width) if orientation in range(5, 9) else size, notes


def _orientation(file: Image.Image) -> int:
    """Return the EXIF orientation, 1 if there is none."""
    for key, cost in (("exif", exif_bytes), ("Raw profile type exif", _text_cost)):
        if cost(file.info.get(key, b"")) > limits.EXIF_BYTES:
            del file.info[key]
    return int(file.getexif().get(0x0112, 1))


def _text_cost(text: str) -> int:
    """Return the bytes that Pillow may copy from EXIF data as hexadecimal digits: all of them for every tag."""
    return (len(text) // 2) ** 2 // 12


def _reduced(name: str, picture: Image.Image, factor: int) -> Image.Image:
    """Return the picture in a simple mode; a large one reduced by an integer factor, strip by strip."""
    width, height = picture.size
    if width * height <= LARGE or factor < 2:
        return _simple_mode(name, picture, picture.format)
    result: Image.Image | None = None
    rows = max(1, STRIP // factor) * factor
    for top in range(0, height, rows):
        strip = picture.crop((0, top, width, min(height, top + rows)))
        strip.info = picture.info  # names the transparent color of a palette
        part = _simple_mode(name, strip, picture.format).reduce(factor)
        if result is None:
            result = Image.new(part.mode, (part.width, -(-height // factor)))
        result.paste(part, (0, top // factor))
    assert result is not None
    return result


class _SilentLibtiff:
    """Keeps the library that Pillow loads from printing what is wrong with a file, which the error says already.

    The handler of its errors belongs to the process: the first that enters removes it, and the last that leaves
    restores it.
    """

    def __init__(self) -> None:
        self._lock, self._entered = Lock(), 0
        self._handlers: list[int | None] = []

    def __enter__(self) -> None:
        with self._lock:
            self._entered += 1
            if self._entered == 1:
                self._handlers = [set_handler(None) for set_handler in _libtiff_handler_setters()]

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._entered -= 1
            if not self._entered:
                for set_handler, handler in zip(_libtiff_handler_setters(), self._handlers, strict=True):
                    set_handler(handler)


silent_libtiff = _SilentLibtiff()


@cache
def _libtiff_handler_setters() -> list[Callable[[int | None], int | None]]:
    """Return TIFFSetErrorHandler of every libtiff that is loaded."""
    found: list[Any] = []
    with suppress(OSError, AttributeError):
        maps = Path("/proc/self/maps").read_text().splitlines()
        for path in {line.split(maxsplit=5)[5] for line in maps if "/libtiff" in line}:
            found.append(ctypes.CDLL(path).TIFFSetErrorHandler)
            found[-1].argtypes, found[-1].restype = [ctypes.c_void_p], ctypes.c_void_p
    return found


def _check_size(name: str, file: Any, content: BoundedFile, max_pixels: int | None) -> None:
    pixels, copies = file.width * file.height, limits.DECODER_COPIES.get(file.format, 1)
    if pixels > (limits.PIXELS if max_pixels is None else max_pixels) // copies:
        raise InputError(too_large(name, max_pixels, copies))
    if max(file.size) > limits.PICTURE_SIDE:
        raise InputError(f"{name} has more than {limits.PICTURE_SIDE:,} pixels a side; cut it first.")
    if pixels > limits.PYTHON_PIXELS and any(tile[0] in IN_PYTHON for tile in file.tile[:1]):
        raise InputError(f"{name} has its pixels as text, or run-length encoded; save it as PNG.")
    if file.format == "TIFF":
        _check_tiff(name, file, content, max_pixels)
    if file.format in ("JPEG", "MPO"):
        _check_scans(name, scans(file, content), content, max_pixels)
    # MPO files of cameras contain previews after the photograph, which is the first frame.
    if getattr(file, "is_animated", False) and file.format != "MPO":
        raise InputError(f"{name} has several frames; give an image file with one frame, such as PNG.")


def _check_tiff(name: str, file: Any, content: BoundedFile, max_pixels: int | None) -> None:
    """Raise InputError if the tiles or strips of a TIFF file take more than a picture may, or share their bytes.

    The decoder takes memory for a whole tile, which may be larger than the picture, and time for each of them.
    """
    if file.info.get("compression") == "lzma":  # at 20 MB a second
        raise InputError(f"{name} is compressed by LZMA; save it as PNG.")
    try:
        found = layout(file, content, limits.READS)
    except (ValueError, TypeError, OverflowError, KeyError, struct.error):
        raise InputError(f"{name} has damaged tags; save it as PNG.") from None
    if found.pixels > 2 * (limits.PIXELS if max_pixels is None else max_pixels) or found.side > limits.PICTURE_SIDE:
        raise InputError(too_large(name, max_pixels))
    if found.count > limits.READS:
        raise InputError(f"{name} has more than {limits.READS:,} tiles or strips; save it as PNG.")
    if found.named_bytes > content.size():
        raise InputError(f"{name} names more bytes than it has; it is truncated or damaged: save it again, as PNG.")
    _check_scans(name, found.scans, content, max_pixels)
    # The picture takes memory when its first tile or strip is decoded: a single one may fail before.
    others = content.size() + (4 * file.width * file.height if found.count > 1 else 0)
    pixels = max(limits.PIXELS, max_pixels or 0)
    allowed = min(limits.TILE_BYTES * pixels, limits.TIFF_BYTES * pixels - others)
    if found.piece_bytes > allowed:
        raise InputError(
            f"{name} has tiles or strips that take more than {allowed / 1e6:.0f} MB; save it as PNG, or raise "
            f"max_pixels."
        )


def _check_scans(name: str, passes: int, content: BoundedFile, max_pixels: int | None) -> None:
    """Raise InputError if a JPEG file, or one inside a TIFF file, has too many scans, or too many bytes for several."""
    if passes > limits.SCANS:
        raise InputError(f"{name} has more than {limits.SCANS} scans; save it again, as PNG.")
    if passes > 1:
        _check_bytes(name, content, limits.SLOW_BYTES["JPEG"], max_pixels)


def _check_avif(name: str, content: BoundedFile, max_pixels: int | None) -> None:
    """Raise InputError if an AVIF file has larger pictures than it says, or more than colors and transparency need.

    Opening it may take long already.
    """
    _check_bytes(name, content, limits.SLOW_BYTES["AVIF"], max_pixels)
    try:
        coded = coded_pixels(content.start())
    except ValueError as error:
        raise InputError(f"{name} cannot be read: {error}; save it again, as PNG.") from error
    copies = limits.DECODER_COPIES["AVIF"]
    allowed = (limits.PIXELS if max_pixels is None else max_pixels) // copies
    if coded.largest > allowed or coded.total > limits.AVIF_LAYERS * allowed:
        raise InputError(too_large(name, max_pixels, copies))


def _check_bytes(name: str, content: BoundedFile, per_pixel: float, max_pixels: int | None) -> None:
    """Raise InputError for a file with more bytes than `per_pixel` for each pixel that may be decoded.

    A lower `max_pixels` does not lower this limit.
    """
    allowed = per_pixel * max(limits.PIXELS, max_pixels or 0)
    if content.size() > allowed:
        raise InputError(f"{name} has more than {allowed / 1_000_000:g} MB; reduce it first.")


def _simple_mode(name: str, picture: Image.Image, format: str | None) -> Image.Image:
    mode = picture.mode
    # 16-bit gray, which some formats and versions of Pillow store as "I".
    if mode.startswith("I;16") or (mode == "I" and format in ("PNG", "PPM")):
        return Image.fromarray(np.asarray(picture).astype(np.float32) / 257)  # 65535 / 255
    if mode not in ("L", "LA", "RGB", "RGBA", *OTHER_MODES):
        raise InputError(f"{name} has the pixel mode {mode!r}; save it as a gray or RGB image of 8 or 16 bits.")
    if "transparency" in picture.info or mode in ("PA", "La", "RGBa"):
        return picture.convert("RGBA")
    if mode in OTHER_MODES:
        return picture.convert("L" if mode == "1" else "RGB")
    return picture


def too_large(name: str, max_pixels: int | None, copies: int = 1) -> str:
    """Return the error message; it mentions `max_pixels` only if the caller set it."""
    megapixels = (limits.PIXELS if max_pixels is None else max_pixels) // copies / 1_000_000
    advice = "reduce it first" if max_pixels is None else "reduce it first, or raise max_pixels"
    return f"{name} has more than {megapixels:g} megapixels; {advice}."
