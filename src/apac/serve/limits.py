"""What a request may ask for. Every limit is checked before the work that it limits."""

from __future__ import annotations

from dataclasses import dataclass

from apac import limits


@dataclass(frozen=True)
class Limits:
    """The limits of one server process; `apac.limits` has the reasons for these defaults."""

    body_bytes: int = limits.REQUEST_BYTES
    images: int = limits.REQUEST_IMAGES  # of a request
    pixels: int = limits.UPLOADED_PIXELS  # of all image files of a request
    passes: int = limits.REQUEST_PASSES  # of an image
    seconds: float = limits.REQUEST_SECONDS  # from the request to its decision
    body_seconds: float = limits.BODY_SECONDS  # for a client to send its request
    queue: int = limits.QUEUE  # images that wait for their first pass
    buffered_bytes: int = limits.BUFFERED_BYTES  # bodies of all requests together
    connections: int = limits.CONNECTIONS  # open at a time
