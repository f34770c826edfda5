"""A person's image file, made into what a network was trained on."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from apac.data.digit_image import as_mnist
from apac.errors import InputError

# Named, as Pillow would otherwise start other programs for some formats.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
LIMIT = 50_000_000  # pixels
WORKING_SIDE = 1024  # pixels; more add nothing to an image of 28 or 32
DIGIT = (1, 28, 28)
OTHER_MODES = ("1", "P", "PA", "La", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV")


def read_image(path: str | os.PathLike[str], image_shape: tuple[int, int, int]) -> tuple[Tensor, tuple[str, ...]]:
    """The image as (C, H, W) uint8, and what was done to it, in short phrases.

    For 1 × 28 × 28 the result follows MNIST: light ink on black, 20 pixels long, its center of mass in the middle. For
    any other shape it is the middle of the picture, resized.
    """
    channels, height, width = image_shape
    if channels not in (1, 3):
        raise InputError(
            f"image files have 1 or 3 channels, and this network takes {channels}; give it tensors instead."
        )
    picture, notes = _open(Path(path))
    if image_shape == DIGIT:
        gray, more = _gray(picture)
        pixels, last = as_mnist(gray, path=str(path), size=picture.size)
        return torch.from_numpy(pixels)[None], (*notes, *more, *last)
    pixels, more = _fitted(picture, channels, (width, height))
    return torch.from_numpy(pixels), (*notes, *more)


def _open(path: Path) -> tuple[Image.Image, list[str]]:
    """The picture, upright, in mode L, LA, RGB, RGBA or, for 16-bit gray, F from 0 to 255."""
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the path of one image file.")
    try:
        if path.stat().st_size == 0:
            raise InputError(f"{path} is empty; give an image file, such as PNG or JPEG.")
        # Pillow warns of large, damaged or odd files; here such a file is either read or refused.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(path, formats=FORMATS) as file:
                _check_size(path, file)
                file.load()
                upright = ImageOps.exif_transpose(file)
                turned = ["turned as its EXIF orientation says"] if file.getexif().get(0x0112, 1) in range(2, 9) else []
                return _simple_mode(path, upright, file.format), turned
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}; give the path of an image file.") from error
    except PermissionError as error:
        raise InputError(f"{path} may not be read; allow reading it or give another image file.") from error
    except Image.DecompressionBombError as error:
        raise InputError(_too_large(path)) from error
    except Exception as error:  # a damaged file makes Pillow raise almost anything
        raise InputError(
            f"{path} cannot be read as an image ({_first_line(error)}); "
            "give an undamaged PNG, JPEG, WebP, GIF, BMP, TIFF or PNM file."
        ) from error


def _first_line(error: Exception) -> str:
    unknown = isinstance(error, UnidentifiedImageError)
    return "unknown format" if unknown else str(error).split("\n")[0].rstrip(".") or type(error).__name__


def _too_large(path: Path) -> str:
    return f"{path} has more than {LIMIT // 1_000_000} megapixels; make it smaller first."


def _check_size(path: Path, file: Image.Image) -> None:
    if file.width * file.height > LIMIT:
        raise InputError(_too_large(path))
    # Cameras put previews behind the photograph and call it MPO: the first frame is the picture.
    frames = getattr(file, "n_frames", 1)
    if frames > 1 and file.format != "MPO":
        raise InputError(f"{path} has {frames} frames; give an image file with one, such as one frame saved as PNG.")


def _simple_mode(path: Path, picture: Image.Image, format: str | None) -> Image.Image:
    mode = picture.mode
    # 16-bit gray; "I" holds it for some formats and versions of Pillow.
    if mode.startswith("I;16") or (mode == "I" and format in ("PNG", "PPM")):
        return Image.fromarray(np.asarray(picture).astype(np.float32) / 257)  # 65535 / 255
    if mode not in ("L", "LA", "RGB", "RGBA", *OTHER_MODES):
        raise InputError(f"{path} has pixels of the kind {mode!r}; save it as a gray or RGB image of 8 or 16 bits.")
    if "transparency" in picture.info or mode in ("PA", "La", "RGBa"):
        return picture.convert("RGBA")
    if mode in OTHER_MODES:
        return picture.convert("L" if mode == "1" else "RGB")
    return picture


def _gray(picture: Image.Image) -> tuple[NDArray[np.float32], list[str]]:
    """Brightness from 0 to 255, small enough to work with, and what was done."""
    notes = []
    if max(picture.size) > WORKING_SIDE:
        picture = picture.copy()
        picture.thumbnail((WORKING_SIDE, WORKING_SIDE), Image.Resampling.BOX)
    if picture.mode in ("LA", "RGBA"):
        alpha = np.asarray(picture.getchannel("A"))
        if alpha.min() < 255:
            ground = _ground_behind(np.asarray(picture.convert("L")), alpha)
            picture = _laid_on(picture, ground)
            notes.append(f"transparent parts laid on {({0: 'black', 255: 'white'}).get(ground, 'its ground')}")
    if picture.mode in ("RGB", "RGBA"):
        red, green, blue = (np.asarray(picture.getchannel(channel)) for channel in "RGB")
        if (red != green).any() or (green != blue).any():
            notes.append("color turned gray")
    return np.asarray(picture if picture.mode == "F" else picture.convert("L"), np.float32), notes


def _ground_behind(gray: NDArray[np.uint8], alpha: NDArray[np.uint8]) -> int:
    """What to put behind a partly transparent drawing so that its ink is seen."""
    visible = gray[alpha > 127]
    if visible.size == 0:
        return 255
    low, middle, high = np.percentile(visible, (5, 50, 95))
    if high - low > 32 and visible.size > alpha.size / 2:
        return int(middle)  # a drawing on its own paper, with holes or round corners
    return 0 if middle > 127 else 255


def _laid_on(picture: Image.Image, ground: int) -> Image.Image:
    rgba = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, (ground, ground, ground, 255)), rgba).convert("RGB")


def _fitted(picture: Image.Image, channels: int, size: tuple[int, int]) -> tuple[NDArray[np.uint8], list[str]]:
    """The middle of the picture as (C, H, W), and what was done."""
    notes = []
    if picture.mode in ("LA", "RGBA"):
        if picture.getchannel("A").getextrema()[0] != 255:
            notes.append("transparent parts laid on white")
        picture = _laid_on(picture, 255)
    if picture.mode == "F":
        picture = Image.fromarray(np.asarray(picture).round().astype(np.uint8))
    wanted = "L" if channels == 1 else "RGB"
    if picture.mode != wanted:
        notes.append("color turned gray" if channels == 1 else "gray repeated as red, green and blue")
        picture = picture.convert(wanted)
    (width, height), (columns, rows) = picture.size, size
    across, down = min(width, height * columns / rows), min(height, width * rows / columns)
    if (across, down) != (width, height):
        notes.append("cropped to the middle")
        left, upper = round((width - across) / 2), round((height - down) / 2)
        picture = picture.crop((left, upper, left + max(1, round(across)), upper + max(1, round(down))))
    if picture.size != size:
        notes.append(f"resized from {width} × {height}")
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    pixels = np.array(picture, np.uint8).reshape(rows, columns, channels)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)), notes
