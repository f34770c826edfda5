"""Transforms of albumentations: functions of arrays (H, W, C), or (N, H, W, C) that share a draw."""

from __future__ import annotations

import copy
import json
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from apac.adapters.transforms.image_transform import ImageTransform
from apac.errors import InputError, require
from apac.randomness import numpy_and_python_generators
from apac.validation import quoted, shortened

# Some transforms need more time per image for large arrays (N, H, W, C), others less. One image per call and as many
# as these numbers of bytes hold are timed, in turn so that a slow second of the machine decides nothing.
CHUNK_BYTES = (1 << 20, 4 << 20)
CHUNK_IMAGES = 256  # at most, which hide the time of a call; timing more of small images would take seconds
TIMED_SEEDS, TIMED_ROUNDS = 4, 4


@dataclass(frozen=True, eq=False)
class AlbumentationsTransform(ImageTransform):
    """A transform of albumentations."""

    copies_input: ClassVar[bool] = True
    _copies: list[Callable[..., Any]] = field(init=False)  # one for each thread
    # Images per call, by image shape. None if the results depend on the call: then all images share one.
    _chunks: dict[tuple[int, ...], int | None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        albumentations = _albumentations()
        if not isinstance(self.transform, albumentations.BasicTransform | albumentations.BaseCompose):
            raise InputError(
                f"from_albumentations takes albumentations transforms, got {self.name}; use from_callable for "
                f"functions of tensors."
            )
        # A copy, because seeding the caller's object would also affect the caller's training.
        compose = copy.deepcopy(self.transform)
        if not isinstance(compose, albumentations.Compose):  # the only transform that takes random states
            compose = albumentations.Compose([compose])
        object.__setattr__(self, "_copies", [compose])

    def one(self, image: Tensor) -> Any:
        compose = _with_state(self._copies[0], _draw_seed())
        result = compose(image=_array(image[None])[0])["image"]
        if not isinstance(result, Tensor):  # ToTensorV2 returns a tensor
            result = torch.from_numpy(np.ascontiguousarray(result.reshape(*result.shape[:2], -1))).permute(2, 0, 1)
        return result.to(image.device)

    def together(self, images: Tensor) -> Any:
        seed = _draw_seed()
        arrays = _array(images)
        if arrays.shape[1:] not in self._chunks:
            self._chunks[arrays.shape[1:]] = self._fastest_chunk(arrays[:1], seed)
        size = self._chunks[arrays.shape[1:]] or len(arrays)
        return torch.cat(self._run_in_threads(arrays, size, seed)).to(images.device)

    def _run_in_threads(self, arrays: Any, size: int, seed: int) -> list[Tensor]:
        """Transform arrays (N, H, W, C) by calls with up to `size` of them, in as many threads as OpenCV may use."""
        threads = min(require("cv2", extra="adapters").getNumThreads(), -(-len(arrays) // size))
        if threads <= 1:
            return _run_in_chunks(self._copies[0], arrays, size, seed)
        while len(self._copies) < threads:
            self._copies.append(copy.deepcopy(self._copies[0]))
        shares = np.array_split(arrays, threads)
        with ThreadPoolExecutor(threads) as executor:
            run = partial(_run_in_chunks, size=size, seed=seed)
            return [chunk for chunks in executor.map(run, self._copies, shares) for chunk in chunks]

    def _fastest_chunk(self, array: Any, seed: int) -> int | None:
        """Return the number of images per call that is the fastest for images like this one, (1, H, W, C)."""
        sizes = sorted({1, *(min(max(1, limit // int(array.nbytes)), CHUNK_IMAGES) for limit in CHUNK_BYTES)})
        images = np.concatenate([array] * max(sizes))
        seeds = range(seed, seed + TIMED_SEEDS)
        alone = [_run(self._copies[0], array, number) for number in seeds]
        seconds = dict.fromkeys(sizes, math.inf)
        for size in TIMED_ROUNDS * sizes:
            started = time.process_time()  # other processes do not count
            results = [_run(self._copies[0], images[:size], number)[:1] for number in seeds]
            seconds[size] = min(seconds[size], (time.process_time() - started) / size)
            if not all(map(torch.equal, results, alone)):
                return None  # a choice by time would let results depend on the load of the machine
        return min(sizes, key=seconds.__getitem__)

    def describe(self) -> Any:
        albumentations = _albumentations()
        try:
            payload = json.loads(json.dumps(albumentations.to_dict(self.transform)["transform"]))
        except (TypeError, ValueError, NotImplementedError) as error:
            raise InputError(f"albumentations cannot serialize it ({str(error).rstrip('.')}).") from error
        _check_classes(payload)
        return payload

    @classmethod
    def rebuild(cls, payload: Any) -> AlbumentationsTransform:
        albumentations = _albumentations()
        _check_classes(payload)
        try:
            return cls(albumentations.from_dict({"transform": payload}))
        except InputError:
            raise
        except Exception as error:  # the constructors refuse arguments with many types of exceptions
            raise InputError(
                f"albumentations cannot build a transform from {quoted(payload)}: {shortened(error)}."
            ) from error


def _albumentations() -> Any:
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # its import would ask a server for a newer version
    return require("albumentations", extra="adapters")


def _run(compose: Callable[..., Any], arrays: Any, seed: int) -> Tensor:
    """Transform arrays (n, H, W, C) with the same random numbers in every call."""
    result = _with_state(compose, seed)(images=arrays)["images"]
    if isinstance(result, Tensor):  # ToTensorV2
        return result
    return torch.from_numpy(result.reshape(*result.shape[:3], -1)).permute(0, 3, 1, 2)


def _run_in_chunks(compose: Callable[..., Any], arrays: Any, size: int, seed: int) -> list[Tensor]:
    return [_run(compose, chunk, seed) for chunk in np.array_split(arrays, -(-len(arrays) // size))]


def _with_state(compose: Any, seed: int) -> Any:
    # Not set_random_seed, which gives all parts of a Compose the same numbers: a flip of probability 0.5 and a change
    # of colors of probability 0.5 would always occur together.
    compose.set_random_state(*numpy_and_python_generators(seed))
    return compose


def _draw_seed() -> int:
    """Draw a seed from the global generator of numpy."""
    return int(np.random.randint(1 << 62))


def _check_classes(payload: Any) -> None:
    """Raise InputError if a description names classes that albumentations does not define."""
    from albumentations.core.serialization import SERIALIZABLE_REGISTRY

    if isinstance(payload, dict):
        if "__class_fullname__" in payload:
            name = payload["__class_fullname__"]
            kind = SERIALIZABLE_REGISTRY.get(name)
            if kind is None or not kind.__module__.startswith("albumentations.") or name == "Lambda":
                raise InputError(f"{quoted(name)} is not a transform of albumentations that can be stored.")
        for value in payload.values():
            _check_classes(value)
    elif isinstance(payload, list):
        for value in payload:
            _check_classes(value)


def _array(images: Tensor) -> Any:
    """Return a copy as an array (N, H, W, C) of float32, the only floating-point type of albumentations."""
    n, channels, height, width = images.shape
    return torch.empty(n, height, width, channels).copy_(images.detach().permute(0, 2, 3, 1)).numpy()
