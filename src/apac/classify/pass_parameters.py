"""The parameters of a pass: they depend on the seed and the number of the pass and, if independent, on the image."""

from __future__ import annotations

import hashlib
from typing import Any

from torch import Tensor

from apac import trees
from apac.deform.base import Deformation
from apac.randomness import generator


def sample_shared(deformation: Deformation, images: Tensor, seed: int, numbers: range) -> Any:
    """Sample one row of parameters per pass, which all images share. They depend on (seed, m)."""
    rows = [
        deformation.sample(1, _image_shape(images), generator=generator(seed, "pass", number)) for number in numbers
    ]
    return trees.to_device(trees.concatenate(rows), images.device)


def sample_independent(deformation: Deformation, images: Tensor, seed: int, numbers: range) -> Any:
    """Sample one row of parameters per pass and image, pass by pass. They depend on (seed, pixels of the image, m)."""
    streams = [f"pass of {digest(image)}" for image in images]
    rows = [
        deformation.sample(1, _image_shape(images), generator=generator(seed, stream, number))
        for number in numbers
        for stream in streams
    ]
    return trees.to_device(trees.concatenate(rows), images.device)


def all_values(deformation: Deformation, images: Tensor, numbers: range) -> Any:
    """Return one row of parameters per pass: pass m has value m of a deformation with finitely many values."""
    values = trees.rows(deformation.values(_image_shape(images)), slice(numbers.start, numbers.stop))
    return trees.to_device(values, images.device)


def digest(image: Tensor) -> str:
    """Hash the pixels; the same pixels in another floating-point type have the same hash."""
    return hashlib.blake2b(image.cpu().double().contiguous().numpy().tobytes(), digest_size=16).hexdigest()


def digest_of_all(images: Tensor) -> str:
    """Hash images one by one, because a copy of all of them in float64 may not fit into memory."""
    return hashlib.blake2b("".join(map(digest, images)).encode(), digest_size=16).hexdigest()


def _image_shape(images: Tensor) -> tuple[int, int, int]:
    _, channels, height, width = images.shape
    return channels, height, width
