"""A transform whose randomness is its library's own, held to a seed: same seed, same result, whatever came before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from apac.deform.base import Deformation, prepare
from apac.errors import InputError
from apac.randomness import seeding

Function = Callable[[Tensor], Tensor]  # of one image (C, H, W)
Shape = tuple[int, ...]

TRIED = 8  # seeds with which a transform is tried twice before it is used
# What each transform makes of images of a shape, as was seen when it was tried.
_made: WeakKeyDictionary[Seeded, dict[Shape, Shape]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Seeds:
    """Θ of a transform that draws for itself: what it draws follows from the seed."""

    seed: Tensor  # (n,) int64; torch's generator takes 32 bits of it, so that two of many may draw alike


@dataclass(frozen=True, eq=False)
class Seeded(Deformation):
    """A deformation by a function of one image that draws from the global generators of torch, numpy and Python.

    Every image is given to it alone, after its own seed: a fresh draw for each, even where the library would share one
    in a batch, and the same for an image whatever its neighbors. Nothing else may draw from them meanwhile.
    """

    name: str  # as the call that made it prints
    before: Function | None = field(repr=False)  # fixed
    function: Function = field(repr=False)
    after: Function | None = field(repr=False)  # fixed

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> Seeds:
        return Seeds(torch.randint(2**62, (n,), generator=generator, device=generator.device))

    def apply(self, images: Tensor, parameters: Seeds) -> Tensor:
        parameters = prepare(images, parameters)
        if not len(images):
            return images
        seeds = parameters.seed.expand(len(images)).tolist()
        with seeding() as begin:
            expected = self._try(images[0], begin)
            each = [self._deform(image, seed, begin) for image, seed in zip(images, seeds, strict=True)]
        for image in each:
            self._check_shape(tuple(image.shape), expected)
        return torch.stack(each)

    def preprocess(self, images: Tensor) -> Tensor:
        if not len(images):
            return images
        with seeding() as begin:
            made = self._try(images[0], begin)
            each = [self._run(image, (self.before, self.after)) for image in images]
        shape = tuple(each[0].shape)
        if shape != made:
            raise InputError(
                f"{self.name} makes {made} of images {tuple(images[0].shape)}, but without its random part, as plain "
                f"prediction has it, {shape}; give a resize or a crop of fixed size by after=..."
            )
        return torch.stack(each)

    def _deform(self, image: Tensor, seed: int, begin: Callable[[int], None]) -> Tensor:
        begin(seed)
        return self._run(image, (self.before, self.function, self.after))

    def _run(self, image: Tensor, parts: tuple[Function | None, ...]) -> Tensor:
        result: Any = image.clone()  # a part may work in place
        try:
            for part in parts:
                result = result if part is None else part(result)
        except InputError:
            raise
        except Exception as error:  # other libraries refuse images in many ways
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise InputError(
                f"{self.name} failed on a tensor of shape {tuple(image.shape)}: {reason.rstrip('.')}. It is given "
                f"float images (C, H, W); leave out what turns files or arrays into tensors."
            ) from error
        if not isinstance(result, Tensor) or result.ndim != 3 or not result.is_floating_point():
            got = f"{result.dtype} {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
            raise InputError(f"{self.name} must make a floating-point image (C, H, W), got {got}.")
        return result.to(image.dtype)

    def _try(self, image: Tensor, begin: Callable[[int], None]) -> Shape:
        """The shape that it makes of such an image. A transform with a generator or a memory of its own is refused."""
        known = _made.setdefault(self, {})
        shape = tuple(image.shape)
        if shape not in known:
            first, second = ([self._deform(image, seed, begin) for seed in range(TRIED)] for _ in range(2))
            for one, other in zip(first, second, strict=True):
                self._check_shape(tuple(one.shape), tuple(first[0].shape))
                if one.shape != other.shape or not torch.equal(one.nan_to_num(), other.nan_to_num()):
                    raise InputError(
                        f"{self.name} makes another image of the same one with the same seed: it has randomness or a "
                        f"memory of its own, which passes could not repeat; let it draw from torch's, numpy's or "
                        f"Python's global generator."
                    )
            self._check_fixed(image, begin)
            known[shape] = tuple(first[0].shape)
        return known[shape]

    def _check_fixed(self, image: Tensor, begin: Callable[[int], None]) -> None:
        each = []
        for seed in range(TRIED):
            begin(seed)
            each.append(self._run(image, (self.before, self.after)))
        if any(one.shape != each[0].shape or not torch.equal(one.nan_to_num(), each[0].nan_to_num()) for one in each):
            raise InputError(
                f"the before or after of {self.name} is random: give it a fixed resize or normalization, and put what "
                f"is random into the transform."
            )

    def _check_shape(self, shape: Shape, expected: Shape) -> None:
        if shape != expected:
            raise InputError(
                f"{self.name} makes images of different shapes, {expected} and {shape}; add a resize or crop of fixed "
                f"size by after=..."
            )

    def to_json(self) -> dict[str, Any]:
        raise InputError(f"{self.name} is another library's and cannot be stored; give it to a Classifier.")

    def __repr__(self) -> str:
        return self.name
