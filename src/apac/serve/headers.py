"""The headers of uploaded files: what decoding them would cost, before anything is decoded."""

from __future__ import annotations

import io
from collections.abc import Sequence

from PIL import Image

from apac.data.bounded_file import BoundedFile, scans
from apac.limits import COUNTED_SCANS
from apac.serve.limits import Limits
from apac.serve.pictures import FORMATS
from apac.serve.refusal import bad_request

RUN_LENGTH = (1, 2)  # compressions of BMP files, whose decoder in Pillow takes a second per megapixel


def check_headers(contents: Sequence[bytes], limits: Limits) -> None:
    """Refuse files that together have more pixels than a request may have, or that take long to decode."""
    remaining = limits.pixels
    for content in contents:
        remaining -= _cost(content, remaining)
        if remaining < 0:
            megapixels = limits.pixels // 1_000_000
            raise bad_request(f"the image files of a request may have at most {megapixels} megapixels together.")


def _cost(content: bytes, remaining: int) -> int:
    """Return the pixels to decode; 0 for a file that the decoder will refuse."""
    try:
        bounded = BoundedFile(io.BytesIO(content), "the image")
        with Image.open(bounded, formats=FORMATS) as file:  # type: ignore[arg-type]
            # A progressive JPEG file is decoded once per scan.
            repeats = -(-scans(file, bounded) // COUNTED_SCANS) if file.format in ("JPEG", "MPO") else 1
            pixels, format, compression = file.width * file.height, file.format, file.info.get("compression")
    except Image.DecompressionBombError:
        return remaining + 1
    except Exception:  # Pillow raises many kinds of exceptions for damaged files
        return 0
    if format == "BMP" and compression in RUN_LENGTH:
        raise bad_request("BMP files with run-length encoding are not read; send a PNG file.")
    return pixels * repeats
