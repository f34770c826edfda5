"""Try a transform before its first use: does the seed determine it, and may images that share a draw share a call?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apac.adapters.transforms.image_transform import ImageTransform
from apac.errors import InputError

Shape = tuple[int, ...]
SeedAll = Callable[[int], None]

SEEDS = 8  # a transform runs with each of these seeds
PIXEL_SEEDS = 128  # until it clamps: one that is applied with a probability of 0.05 clamps in all but 0.1 % of cases
# The same image alone and in a batch may differ by this much, a fortieth of a gray level of 8 bits: libraries compute
# coordinates by batched matrix products, whose rounding depends on the size of the batch.
BATCH_ROUNDING = 1e-4
OUTSIDE, MOVED = 0.1, 0.15  # how far a normalization moves values out of 0 … 1, and how far it moves their mean


@dataclass(frozen=True)
class Pipeline:
    """A random transform between deterministic ones."""

    name: str  # the constructor call, for messages
    before: ImageTransform | None
    transform: ImageTransform
    after: ImageTransform | None

    @property
    def parts(self) -> tuple[ImageTransform | None, ...]:
        return self.before, self.transform, self.after

    @property
    def deterministic(self) -> tuple[ImageTransform | None, ...]:
        return self.before, self.after

    def run(self, images: Tensor, parts: Sequence[ImageTransform | None], *, separately: bool = False) -> Tensor:
        """Run parts on one image (C, H, W), or on images (N, C, H, W) by one draw, or by a draw for each."""
        present = [part for part in parts if part is not None]
        # A transform may modify its input in place.
        result: Any = images.clone() if present and not present[0].copies_input else images
        try:
            for part in present:
                if separately and part is self.transform:
                    result = part.separately(result)
                else:
                    result = part.one(result) if images.ndim == 3 else part.together(result)
        except InputError:
            raise
        except Exception as error:  # libraries reject images with many types of exceptions
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise InputError(
                f"{self.name} failed on a tensor of shape {tuple(images.shape)}: {reason.rstrip('.')}. Its input is a "
                f"float image (C, H, W); omit transforms that convert files or arrays to tensors."
            ) from error
        if not isinstance(result, Tensor) or result.ndim != images.ndim or not result.is_floating_point():
            got = f"{result.dtype} {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
            raise InputError(f"{self.name} must return a floating-point image (C, H, W), got {got}.")
        if images.ndim == 4 and len(result) != len(images):
            raise InputError(f"{self.name} must return {len(images)} images for {len(images)}, got {len(result)}.")
        return result.to(images)

    def run_one_by_one(self, images: Tensor, parts: Sequence[ImageTransform | None]) -> Tensor:
        return self.stack([self.run(image, parts) for image in images])

    def stack(self, results: list[Tensor]) -> Tensor:
        for result in results:
            self.check_shape(tuple(result.shape), tuple(results[0].shape))
        return torch.stack(results)

    def check_shape(self, shape: Shape, expected: Shape) -> None:
        if shape != expected:
            raise InputError(
                f"{self.name} returns images of different shapes, {expected} and {shape}; pass after=... with a resize "
                f"or a crop of fixed size."
            )


def results_alone(pipeline: Pipeline, image: Tensor, seed_all: SeedAll) -> list[Tensor]:
    """Return the transformed image (C, H, W) for each seed.

    Raise InputError if the transform is not determined by the seed, because it has its own generator or state, if its
    output shape varies, or if `before` or `after` is random.
    """

    def run(seed: int, parts: Sequence[ImageTransform | None]) -> Tensor:
        seed_all(seed)
        return pipeline.run(image, parts)

    first, second = ([run(seed, pipeline.parts) for seed in range(SEEDS)] for _ in range(2))
    for a, b in zip(first, second, strict=True):
        pipeline.check_shape(tuple(a.shape), tuple(first[0].shape))
        if not equal(a, b):
            raise InputError(
                f"{pipeline.name} returns different images for the same image and seed: it has its own random "
                f"generator or state; let it draw from the global generator of torch, numpy or Python."
            )
    undeformed = [run(seed, pipeline.deterministic) for seed in range(SEEDS)]
    if not all(equal(result, undeformed[0]) for result in undeformed):
        raise InputError(
            f"before or after of {pipeline.name} is random: pass a deterministic resize or normalization, and move the "
            f"random part into the transform."
        )
    return first


def why_not_in_batches(pipeline: Pipeline, images: Tensor, alone: list[Tensor], seed_all: SeedAll) -> str | None:
    """Return why images (N, C, H, W) that share a draw need a call each; None if one call gives the same results.

    `alone` are the results of the first image for each seed.
    """
    for seed, first in enumerate(alone):
        try:
            seed_all(seed)
            batch = pipeline.run(images, pipeline.parts)
            undeformed = pipeline.run(images, pipeline.deterministic)
        except InputError as error:
            return f"it fails on a batch ({str(error).rstrip('.')})"
        seed_all(seed)
        last = pipeline.run(images[-1], pipeline.parts)
        pairs = ((batch[0], first), (batch[-1], last), (undeformed[0], pipeline.run(images[0], pipeline.deterministic)))
        if not all(_close(a, b) for a, b in pairs):
            return "in a batch, an image is transformed in another way than alone"
    return None


def moves_values(pipeline: Pipeline, image: Tensor, seed_all: SeedAll) -> bool:
    """Return whether the random transform takes an image out of 0 … 1 for every seed, as a normalization does.

    Noise leaves 0 … 1, too, but keeps the mean; a random brightness moves it in both directions.
    """
    before = pipeline.run(image, (pipeline.before,))
    if _is_outside(before):
        return False
    results = []
    for seed in range(SEEDS):
        seed_all(seed)
        results.append(pipeline.run(image, (pipeline.before, pipeline.transform)))
    moves = [float(result.mean() - before.mean()) for result in results]
    return all(map(_is_outside, results)) and (min(moves) > MOVED or max(moves) < -MOVED)


def _is_outside(image: Tensor) -> bool:
    return bool(image.min() < -OUTSIDE or image.max() > 1 + OUTSIDE)


def equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=BATCH_ROUNDING, atol=BATCH_ROUNDING, equal_nan=True)


def needs_pixels(pipeline: Pipeline, image: Tensor, seed_all: SeedAll) -> bool:
    """Return whether the random transform clamps values to 0 … 1, or has no result for others.

    The image (C, H, W) has values in 0 … 1.
    """
    for seed in range(PIXEL_SEEDS):
        seed_all(seed)
        try:
            result = pipeline.run(5 * image - 2, (pipeline.before, pipeline.transform))
        except InputError:
            return True
        if not result.isfinite().all() or (result.min() >= 0 and result.max() <= 1):
            return True
    return False
