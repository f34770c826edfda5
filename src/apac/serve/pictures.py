"""Uploaded image files: decoded within limits, and drawn as small PNG files."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image
from torch import Tensor

from apac.data.digit_image import NoDigit
from apac.data.image_file import decode_bytes
from apac.errors import InputError
from apac.runs.run import Run
from apac.serve.limits import Limits
from apac.serve.refusal import bad_request

FORMATS = ("PNG", "JPEG", "WEBP", "BMP")  # those with a single frame and a small decoder
UNREADABLE = (
    "cannot be read; send a picture as an undamaged PNG, JPEG, WebP or BMP file of at most {megapixels} megapixels."
)


def read_picture(run: Run, content: bytes, limits: Limits, name: str) -> tuple[Tensor, tuple[str, ...]]:
    """Return the pixels (C, H, W) of a file, prepared as the run does, and notes on the conversion.

    `name` is what the error calls the image.
    """
    sentence = f"{name} {UNREADABLE.format(megapixels=limits.pixels // 1_000_000)}"
    try:
        return decode_bytes(
            content,
            run.image_shape,
            fit=run.config.fit,
            digit=run.takes_digits,
            formats=FORMATS,
            max_pixels=limits.pixels,
        )
    except NoDigit:
        raise bad_request(f"{name} shows no digit: nothing stands out from the background.") from None
    except InputError:
        raise bad_request(sentence) from None


def png(image: Tensor) -> str:
    """Return an image (C, H, W) in 0 … 1, of one or three channels, as the data URL of a PNG file."""
    pixels = (image.clamp(0, 1) * 255).round().byte().numpy()
    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
