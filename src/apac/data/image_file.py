"""Read an image file as input for a network."""

from __future__ import annotations

import io
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import AvifImagePlugin, Image, UnidentifiedImageError
from torch import Tensor

from apac import limits
from apac.data.decode import MARGIN, MAX_SIDE, Decoded, load_picture, silent_libtiff, too_large
from apac.data.digit_image import as_mnist
from apac.errors import InputError
from apac.validation import shortened

logging.getLogger("PIL").addHandler(logging.NullHandler())  # it logs why a file is refused, which the error says
READS_AVIF = AvifImagePlugin.SUPPORTED  # Pillow may be built without it

Fit = Literal["crop", "pad"]

# An explicit list, because Pillow starts other programs for some formats.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", *(("AVIF",) if READS_AVIF else ()))
HEIC_BRANDS = (b"ftyphei", b"ftyphev", b"ftypmif1", b"ftypmsf1")  # at the start of such files
HEIC_SUFFIXES = (".heic", ".heif", ".hif")


def read_image(
    path: str | os.PathLike[str],
    image_shape: tuple[int, int, int],
    *,
    fit: Fit = "crop",
    digit: bool = False,
    max_pixels: int | None = None,
) -> tuple[Tensor, tuple[str, ...]]:
    """Read an image as (C, H, W) uint8, with notes on how it was converted.

    The aspect ratio is kept. With `fit="crop"` the result is the center of the picture, resized; with "pad" it is the
    whole picture, resized, and the pixels of its edge are repeated on both sides. With `digit=True` it has the format
    of MNIST instead, of shape (1, 28, 28): light ink on black, 20 pixels long, with its center of mass in the middle.
    A file with more than `max_pixels` pixels, by default 40 million, is refused before they are decoded.
    """
    with without_warnings():
        return decode_image(Path(path), image_shape, fit=fit, digit=digit, max_pixels=max_pixels)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Ignore Pillow's warnings about large, damaged or unusual files, each of which is either read or rejected.

    They are settings of the process, so this is entered in one thread, around those that read files.
    """
    with warnings.catch_warnings(), silent_libtiff:
        warnings.simplefilter("ignore")
        yield


def decode_image(
    path: Path,
    image_shape: tuple[int, int, int],
    *,
    fit: Fit = "crop",
    digit: bool = False,
    max_pixels: int | None = None,
) -> tuple[Tensor, tuple[str, ...]]:
    """`read_image` for use in worker threads, inside of `without_warnings`."""
    return _convert(partial(_open, path, max_pixels), _name(path), image_shape, fit=fit, digit=digit)


def decode_bytes(
    content: bytes,
    image_shape: tuple[int, int, int],
    *,
    fit: Fit = "crop",
    digit: bool = False,
    formats: tuple[str, ...] = FORMATS,
    max_pixels: int = limits.PIXELS,
) -> tuple[Tensor, tuple[str, ...]]:
    """`decode_image` for the content of a file, in one of these formats and with at most this number of pixels."""

    def open_it(side: int | None = None, fit: Fit = "crop") -> Decoded:
        try:
            return load_picture("the image", io.BytesIO(content), formats, side, fit == "crop", max_pixels)
        except InputError:
            raise
        except Exception as error:  # Pillow raises many kinds of exceptions for damaged files
            raise InputError("the image cannot be read.") from error

    return _convert(open_it, "the image", image_shape, fit=fit, digit=digit)


def _convert(
    open_it: Callable[..., Decoded], name: str, image_shape: tuple[int, int, int], *, fit: Fit, digit: bool
) -> tuple[Tensor, tuple[str, ...]]:
    channels, height, width = image_shape
    if channels not in (1, 3):
        raise InputError(
            f"image files have 1 or 3 channels, and this network takes {channels}; give it tensors instead."
        )
    if digit:
        picture, size, notes = open_it()
        gray, more = _gray(picture)
        pixels, last = as_mnist(gray, path=name, size=size)
        return torch.from_numpy(pixels)[None], (*notes, *more, *last)
    picture, size, notes = open_it(max(height, width), fit)
    pixels, more = _fitted(picture, size, channels, (width, height), fit)
    return torch.from_numpy(pixels), (*notes, *more)


def _open(path: Path, max_pixels: int | None, side: int | None = None, fit: Fit = "crop") -> Decoded:
    """Return `load_picture` of a file, or raise InputError with the reason why it cannot be read."""
    name = _name(path)
    try:
        if path.is_dir():
            raise InputError(f"{name} is a folder; give the path of one image file.")
        if path.stat().st_size == 0:
            raise InputError(f"{name} is empty; give an image file, such as PNG or JPEG.")
        with path.open("rb") as content:
            return load_picture(name, content, FORMATS, side, fit == "crop", max_pixels)
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"there is no file {name}; give the path of an image file.") from error
    except PermissionError as error:
        raise InputError(f"{name} is not readable; change its permissions or give another image file.") from error
    except Image.DecompressionBombError as error:
        raise InputError(too_large(name, max_pixels)) from error
    except Exception as error:  # Pillow raises many kinds of exceptions for damaged files
        raise InputError(
            f"{name} cannot be read as an image ({_reason(path, error)}); "
            "give an undamaged PNG, JPEG, WebP, GIF, BMP, TIFF or PNM file."
        ) from error


def _name(path: Path) -> str:
    """Return a path for an error message, which is a part of a row of a table."""
    return shortened(path, limits.QUOTED_TEXT)


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        with path.open("rb") as file:
            brand = file.read(12)[4:]
        # Phones and messengers give such files the suffix .jpg.
        return "HEIC" if brand.startswith(HEIC_BRANDS) or path.suffix.lower() in HEIC_SUFFIXES else "unknown format"
    # The text of an error of the system repeats the path.
    text = getattr(error, "strerror", None) or str(error).split("\n")[0]
    return shortened(text, limits.QUOTED_TEXT) or type(error).__name__


def _gray(picture: Image.Image) -> tuple[NDArray[np.float32], list[str]]:
    """Return the brightness in [0, 255], at most 1024 pixels per side, with notes."""
    notes = []
    if max(picture.size) > MAX_SIDE:
        picture = picture.copy()
        picture.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.BOX)
    if picture.mode in ("LA", "RGBA"):
        alpha = np.asarray(picture.getchannel("A"))
        if alpha.min() < 255:
            background = _background_behind(np.asarray(picture.convert("L")), alpha)
            picture = _composited(picture, background)
            color = {0: "black", 255: "white"}.get(background, "its background")
            notes.append(f"transparent parts composited on {color}")
    if picture.mode in ("RGB", "RGBA"):
        red, green, blue = (np.asarray(picture.getchannel(channel)) for channel in "RGB")
        if (red != green).any() or (green != blue).any():
            notes.append("converted to gray")
    return np.asarray(picture if picture.mode == "F" else picture.convert("L"), np.float32), notes


def _background_behind(gray: NDArray[np.uint8], alpha: NDArray[np.uint8]) -> int:
    """Return a background gray value on which the ink of a partly transparent drawing is visible."""
    visible = gray[alpha > 127]
    if visible.size == 0:
        return 255
    low, middle, high = np.percentile(visible, (5, 50, 95))
    if high - low > 32 and visible.size > alpha.size / 2:
        return int(middle)  # a drawing with its own paper, with holes or round corners
    return 0 if middle > 127 else 255


def _composited(picture: Image.Image, background: int) -> Image.Image:
    rgba = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, (background, background, background, 255)), rgba).convert(
        "RGB"
    )


def _fitted(
    picture: Image.Image, original: tuple[int, int], channels: int, size: tuple[int, int], fit: Fit
) -> tuple[NDArray[np.uint8], list[str]]:
    """Fit the picture, whose file has the size `original`, to (C, H, W), and return it with notes."""
    notes = []
    if picture.mode in ("LA", "RGBA") and picture.getchannel("A").getextrema()[0] != 255:
        notes.append("transparent parts composited on white")
    if (picture.mode in ("RGB", "RGBA")) == (channels == 1):
        notes.append("converted to gray" if channels == 1 else "converted from gray to RGB")
    (width, height), (columns, rows) = original, size
    resized = size
    box: tuple[float, float, float, float] = (0, 0, *picture.size)
    if fit == "pad":
        scale = min(columns / width, rows / height)
        resized = min(columns, max(1, round(width * scale))), min(rows, max(1, round(height * scale)))
    else:
        crop_width, crop_height = min(width, height * columns / rows), min(height, width * rows / columns)
        if (crop_width, crop_height) != (width, height):
            notes.append("cropped to the center")
            left, upper = round((width - crop_width) / 2), round((height - crop_height) / 2)
            right, lower = left + max(1, round(crop_width)), upper + max(1, round(crop_height))
            picture, box = _cropped(picture, original, (left, upper, right, lower))
    picture = _in_mode(picture, "L" if channels == 1 else "RGB")  # after cropping: a panorama is in memory only once
    if picture.size != resized:
        notes.append(f"resized from {width} × {height}")
        picture = picture.resize(resized, Image.Resampling.LANCZOS, box, reducing_gap=MARGIN)
    pixels = np.array(picture, np.uint8).reshape(resized[1], resized[0], channels)
    if resized != size:
        notes.append("padded")
        margins = [
            ((length - filled) // 2, (length - filled + 1) // 2)
            for length, filled in ((rows, resized[1]), (columns, resized[0]))
        ]
        pixels = np.pad(pixels, [*margins, (0, 0)], mode="edge")
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)), notes


def _in_mode(picture: Image.Image, mode: str) -> Image.Image:
    """Convert to L or RGB."""
    if picture.mode in ("LA", "RGBA"):
        picture = _composited(picture, 255).convert("L" if picture.mode == "LA" else "RGB")
    if picture.mode == "F":
        picture = Image.fromarray(np.asarray(picture).round().astype(np.uint8))
    return picture.convert(mode)


def _cropped(
    picture: Image.Image, original: tuple[int, int], box: tuple[int, int, int, int]
) -> tuple[Image.Image, tuple[float, float, float, float]]:
    """Crop to a box in pixels of the file, and return where it lies in the result.

    The edges of the box are between two pixels if the file was decoded at a smaller size. Otherwise nothing outside of
    the box is left, which would shine through at the border.
    """
    # An integer: the last pixel of a row or column may stand for fewer.
    reduction = round(max(original) / max(picture.size))
    left, upper, right, lower = (edge / reduction for edge in box)
    first, top = math.floor(left), math.floor(upper)
    cropped = picture.crop((first, top, math.ceil(right), math.ceil(lower)))
    return cropped, (left - first, upper - top, right - first, lower - top)
