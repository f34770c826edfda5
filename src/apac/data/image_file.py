"""Read an image file as input for a network."""

from __future__ import annotations

import io
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
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from apac.data.digit_image import as_mnist
from apac.errors import InputError

try:
    from PIL import AvifImagePlugin  # since Pillow 11.3

    READS_AVIF = AvifImagePlugin.SUPPORTED
except ImportError:
    READS_AVIF = False

Fit = Literal["crop", "pad"]

# An explicit list, because Pillow starts other programs for some formats.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", *(("AVIF",) if READS_AVIF else ()))
LIMIT = 50_000_000  # pixels
# A large picture is first reduced to no less than this multiple of the result, by a faster method: a JPEG file while it
# is decoded. The pixels differ by less than 1 of 255 on average; a photo of 12 megapixels takes a quarter of the time.
MARGIN = 3
MAX_SIDE = 1024  # pixels; a larger image adds nothing to a digit of 28 × 28
HEIC_BRANDS = (b"ftyphei", b"ftyphev", b"ftypmif1", b"ftypmsf1")  # at the start of such files
HEIC_SUFFIXES = (".heic", ".heif", ".hif")
OTHER_MODES = ("1", "P", "PA", "La", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV")


def read_image(
    path: str | os.PathLike[str], image_shape: tuple[int, int, int], *, fit: Fit = "crop", digit: bool = False
) -> tuple[Tensor, tuple[str, ...]]:
    """Read an image as (C, H, W) uint8, with notes on how it was converted.

    The aspect ratio is kept. With `fit="crop"` the result is the center of the picture, resized; with "pad" it is the
    whole picture, resized, and the pixels of its edge are repeated on both sides. With `digit=True` it has the format
    of MNIST instead, of shape (1, 28, 28): light ink on black, 20 pixels long, with its center of mass in the middle.
    """
    with without_warnings():
        return decode_image(Path(path), image_shape, fit=fit, digit=digit)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Ignore Pillow's warnings about large, damaged or unusual files, each of which is either read or rejected.

    Python's warning filters belong to the process, so this is entered in one thread, around those that read files.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def decode_image(
    path: Path, image_shape: tuple[int, int, int], *, fit: Fit = "crop", digit: bool = False
) -> tuple[Tensor, tuple[str, ...]]:
    """`read_image` for use in worker threads, inside of `without_warnings`."""
    return _convert(partial(_open, path), str(path), image_shape, fit=fit, digit=digit)


def decode_bytes(
    content: bytes,
    image_shape: tuple[int, int, int],
    *,
    fit: Fit = "crop",
    digit: bool = False,
    formats: tuple[str, ...] = FORMATS,
    max_pixels: int = LIMIT,
) -> tuple[Tensor, tuple[str, ...]]:
    """`decode_image` for the content of a file, in one of these formats and with at most this number of pixels."""

    def open_it(side: int | None = None, fit: Fit = "crop") -> _Opened:
        try:
            with Image.open(io.BytesIO(content), formats=formats) as file:
                return _load("the image", file, side, fit, max_pixels)
        except InputError:
            raise
        except Exception as error:  # Pillow raises many kinds of exceptions for damaged files
            raise InputError("the image cannot be read.") from error

    return _convert(open_it, "the image", image_shape, fit=fit, digit=digit)


_Opened = tuple[Image.Image, tuple[int, int], list[str]]  # the picture, the size of the file, and notes


def _convert(
    open_it: Callable[..., _Opened], name: str, image_shape: tuple[int, int, int], *, fit: Fit, digit: bool
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


def _open(path: Path, side: int | None = None, fit: Fit = "crop") -> _Opened:
    """Return `_load` of a file, or raise InputError with the reason why it cannot be read."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the path of one image file.")
    try:
        if path.stat().st_size == 0:
            raise InputError(f"{path} is empty; give an image file, such as PNG or JPEG.")
        with Image.open(path, formats=FORMATS) as file:
            return _load(str(path), file, side, fit, LIMIT)
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}; give the path of an image file.") from error
    except PermissionError as error:
        raise InputError(f"{path} is not readable; change its permissions or give another image file.") from error
    except Image.DecompressionBombError as error:
        raise InputError(_too_large(str(path), LIMIT)) from error
    except Exception as error:  # Pillow raises many kinds of exceptions for damaged files
        raise InputError(
            f"{path} cannot be read as an image ({_reason(path, error)}); "
            "give an undamaged PNG, JPEG, WebP, GIF, BMP, TIFF or PNM file."
        ) from error


def _load(name: str, file: Image.Image, side: int | None, fit: Fit, max_pixels: int) -> _Opened:
    """Return the upright picture in mode L, LA, RGB, RGBA, or F in [0, 255] for 16-bit gray; its size; and notes.

    If the picture is to be fitted to a square of `side` pixels, a large JPEG file is decoded at a smaller size; the
    returned size is that of the file.
    """
    _check_size(name, file, max_pixels)
    size = file.size
    if side is not None:
        reference = min(size) if fit == "crop" else max(size)  # the side that becomes `side` pixels long
        file.draft(None, tuple(max(1, MARGIN * side * length // reference) for length in size))  # type: ignore[arg-type]
    file.load()
    orientation = file.getexif().get(0x0112, 1)
    notes = ["rotated according to its EXIF orientation"] if orientation in range(2, 9) else []
    upright = ImageOps.exif_transpose(file)
    width, height = size
    return (
        _simple_mode(name, upright, file.format),
        (height, width) if orientation in range(5, 9) else size,
        notes,
    )


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        with path.open("rb") as file:
            brand = file.read(12)[4:]
        # Phones and messengers give such files the suffix .jpg.
        return "HEIC" if brand.startswith(HEIC_BRANDS) or path.suffix.lower() in HEIC_SUFFIXES else "unknown format"
    return str(error).split("\n")[0].rstrip(".") or type(error).__name__


def _too_large(name: str, max_pixels: int) -> str:
    return f"{name} has more than {max_pixels // 1_000_000} megapixels; reduce it first."


def _check_size(name: str, file: Image.Image, max_pixels: int) -> None:
    if file.width * file.height > max_pixels:
        raise InputError(_too_large(name, max_pixels))
    # MPO files of cameras contain previews after the photograph, which is the first frame.
    frames = getattr(file, "n_frames", 1)
    if frames > 1 and file.format != "MPO":
        raise InputError(f"{name} has {frames} frames; give an image file with one frame, such as PNG.")


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
    if picture.mode in ("LA", "RGBA"):
        if picture.getchannel("A").getextrema()[0] != 255:
            notes.append("transparent parts composited on white")
        picture = _composited(picture, 255).convert("L" if picture.mode == "LA" else "RGB")
    if picture.mode == "F":
        picture = Image.fromarray(np.asarray(picture).round().astype(np.uint8))
    mode = "L" if channels == 1 else "RGB"
    if picture.mode != mode:
        notes.append("converted to gray" if channels == 1 else "converted from gray to RGB")
        picture = picture.convert(mode)
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


def _cropped(
    picture: Image.Image, original: tuple[int, int], box: tuple[int, int, int, int]
) -> tuple[Image.Image, tuple[float, float, float, float]]:
    """Crop to a box in pixels of the file, and return where it lies in the result.

    The edges of the box are between two pixels if the file was decoded at a smaller size. Otherwise nothing outside of
    the box is left, which would shine through at the border.
    """
    # 1, 2, 4 or 8: the last pixel of a row or column may stand for fewer.
    reduction = round(max(original) / max(picture.size))
    left, upper, right, lower = (edge / reduction for edge in box)
    first, top = math.floor(left), math.floor(upper)
    cropped = picture.crop((first, top, math.ceil(right), math.ceil(lower)))
    return cropped, (left - first, upper - top, right - first, lower - top)
