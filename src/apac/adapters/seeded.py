"""A deformation that wraps a transform which draws from global random generators, and makes it reproducible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from apac.deform.base import INPUT_TYPES, Deformation, InputType, prepare
from apac.errors import InputError
from apac.randomness import seeding

Function = Callable[[Tensor], Tensor]  # of one image (C, H, W)
Shape = tuple[int, ...]

TRIAL_SEEDS = 8  # before its first use a transform runs twice with each of these seeds
# For each transform, the output shape of each input shape that passed the trial.
_output_shapes: WeakKeyDictionary[SeededTransform, dict[Shape, Shape]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class SeededParameters:
    """The seeds that determine the random numbers of the transform."""

    seed: Tensor  # (n,) int64; torch uses 32 bits, so a few of many seeds may coincide


@dataclass(frozen=True, eq=False)
class SeededTransform(Deformation):
    """A deformation by a function of one image that draws from the global generators of torch, numpy and Python.

    Every image is transformed separately, after seeding. Images therefore have independent parameters, even if the
    library shares them in a batch, and the result does not depend on the other images. No other code may draw from the
    global generators during the call.
    """

    name: str  # the constructor call, for `repr` and error messages
    before: Function | None = field(repr=False)  # deterministic
    function: Function = field(repr=False)
    after: Function | None = field(repr=False)  # deterministic

    @property
    def input_types(self) -> tuple[InputType, ...]:
        """Images for transforms of other libraries, all data for a function of one's own."""
        return INPUT_TYPES if self.name.startswith("from_callable") else ("images",)

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> SeededParameters:
        return SeededParameters(torch.randint(2**62, (n,), generator=generator, device=generator.device))

    def apply(self, images: Tensor, parameters: SeededParameters) -> Tensor:
        parameters = prepare(images, parameters)
        if not len(images):
            return images
        seeds = parameters.seed.expand(len(images)).tolist()
        with seeding() as seed_all:
            expected = self._output_shape(images[0], seed_all)
            results = [self._transform(image, seed, seed_all) for image, seed in zip(images, seeds, strict=True)]
        for result in results:
            self._check_shape(tuple(result.shape), expected)
        return torch.stack(results)

    def preprocess(self, images: Tensor) -> Tensor:
        if not len(images):
            return images
        with seeding() as seed_all:
            expected = self._output_shape(images[0], seed_all)
            results = [self._run(image, (self.before, self.after)) for image in images]
        shape = tuple(results[0].shape)
        if shape != expected:
            raise InputError(
                f"{self.name} turns images {tuple(images[0].shape)} into {expected}, but without its random part, for "
                f"the plain prediction, into {shape}; pass after=... with a resize or a crop of fixed size."
            )
        return torch.stack(results)

    def _transform(self, image: Tensor, seed: int, seed_all: Callable[[int], None]) -> Tensor:
        seed_all(seed)
        return self._run(image, (self.before, self.function, self.after))

    def _run(self, image: Tensor, functions: tuple[Function | None, ...]) -> Tensor:
        result: Any = image.clone()  # the function may modify its input in place
        try:
            for function in functions:
                result = result if function is None else function(result)
        except InputError:
            raise
        except Exception as error:  # libraries reject images with many types of exceptions
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise InputError(
                f"{self.name} failed on a tensor of shape {tuple(image.shape)}: {reason.rstrip('.')}. Its input is a "
                f"float image (C, H, W); omit transforms that convert files or arrays to tensors."
            ) from error
        if not isinstance(result, Tensor) or result.ndim != 3 or not result.is_floating_point():
            got = f"{result.dtype} {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
            raise InputError(f"{self.name} must return a floating-point image (C, H, W), got {got}.")
        return result.to(image.dtype)

    def _output_shape(self, image: Tensor, seed_all: Callable[[int], None]) -> Shape:
        """Return the output shape for images of this shape. The first call checks the transform, see `_try`."""
        known = _output_shapes.setdefault(self, {})
        shape = tuple(image.shape)
        if shape not in known:
            known[shape] = self._try(image, seed_all)
        return known[shape]

    def _try(self, image: Tensor, seed_all: Callable[[int], None]) -> Shape:
        """Raise InputError if the transform is not determined by the seed, because it has its own generator or state,
        or if its output shape varies."""
        first, second = ([self._transform(image, seed, seed_all) for seed in range(TRIAL_SEEDS)] for _ in range(2))
        for a, b in zip(first, second, strict=True):
            self._check_shape(tuple(a.shape), tuple(first[0].shape))
            if not _equal(a, b):
                raise InputError(
                    f"{self.name} returns different images for the same image and seed: it has its own random "
                    f"generator or state; let it draw from the global generator of torch, numpy or Python."
                )
        self._check_deterministic(image, seed_all)
        return tuple(first[0].shape)

    def _check_deterministic(self, image: Tensor, seed_all: Callable[[int], None]) -> None:
        results = []
        for seed in range(TRIAL_SEEDS):
            seed_all(seed)
            results.append(self._run(image, (self.before, self.after)))
        if not all(_equal(result, results[0]) for result in results):
            raise InputError(
                f"before or after of {self.name} is random: pass a deterministic resize or normalization, and move the "
                f"random part into the transform."
            )

    def _check_shape(self, shape: Shape, expected: Shape) -> None:
        if shape != expected:
            raise InputError(
                f"{self.name} returns images of different shapes, {expected} and {shape}; pass after=... with a resize "
                f"or a crop of fixed size."
            )

    def to_json(self) -> dict[str, Any]:
        raise InputError(f"{self.name} wraps another library's transform and cannot be stored; use a Classifier.")

    def __repr__(self) -> str:
        return self.name


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
