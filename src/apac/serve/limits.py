"""What a request may ask for. Every limit is checked before the work that it limits."""

from __future__ import annotations

from dataclasses import dataclass

from apac import limits


@dataclass(frozen=True)
class Limits:
    """The limits of one server process."""

    body_bytes: int = 16 << 20
    images: int = 64  # of a request
    pixels: int = limits.UPLOADED_PIXELS  # of all image files of a request
    passes: int = 16_384  # of an image
    seconds: float = 30.0  # from the request to its decision
    body_seconds: float = 10.0  # for a client to send its request
    queue: int = 1024  # images that wait for their first pass
    buffered_bytes: int = 256 << 20  # bodies of all requests together
    connections: int = 512  # open at a time
