"""A transform whose randomness is its library's own, held to a seed: same seed, same result, whatever came before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from apac.deform.base import Deformation, prepare
from apac.errors import InputError
from apac.randomness import seeding

Function = Callable[[Tensor], Tensor]  # of one image (C, H, W)

_known_to_follow: WeakSet[Seeded] = WeakSet()  # their seeds, as was seen once


@dataclass(frozen=True, eq=False)
class Seeds:
    """Θ of a transform that draws for itself: what it draws follows from the seed."""

    seed: Tensor  # (n,) int64


@dataclass(frozen=True, eq=False)
class Seeded(Deformation):
    """A deformation by a function of one image that draws from the global generators of torch, numpy and Python.

    Every image is given to it alone, after its own seed: a fresh draw for each, even where the library would share one
    in a batch, and the same for an image whatever its neighbours.
    """

    name: str  # as the call that made it prints
    function: Function = field(repr=False)

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> Seeds:
        return Seeds(torch.randint(2**62, (n,), generator=generator, device=generator.device))

    def apply(self, images: Tensor, parameters: Seeds) -> Tensor:
        parameters = prepare(images, parameters)
        if not len(images):
            return images
        seeds = parameters.seed.expand(len(images)).tolist()
        with seeding() as begin:
            each = [self._deform(image, seed, begin) for image, seed in zip(images, seeds, strict=True)]
            if self not in _known_to_follow:
                self._check_follows_seed(images[0], each[0], seeds[0], begin)
        shapes = {tuple(image.shape) for image in each}
        if len(shapes) > 1:
            raise InputError(
                f"{self.name} makes images of different shapes, {' and '.join(map(str, sorted(shapes)[:2]))}; "
                f"add a resize or crop of fixed size by after=..."
            )
        return torch.stack(each)

    def _deform(self, image: Tensor, seed: int, begin: Callable[[int], None]) -> Tensor:
        begin(seed)
        try:
            result = self.function(image.clone())  # it may work in place
        except InputError:
            raise
        except Exception as error:  # other libraries refuse images in many ways
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise InputError(f"{self.name} failed on an image of shape {tuple(image.shape)}: {reason}") from error
        if not isinstance(result, Tensor) or result.ndim != 3 or not result.is_floating_point():
            got = f"{result.dtype} {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
            raise InputError(f"{self.name} must make a floating-point image (C, H, W), got {got}.")
        return result.to(image.dtype)

    def _check_follows_seed(self, image: Tensor, result: Tensor, seed: int, begin: Callable[[int], None]) -> None:
        """A transform with a generator or a memory of its own is refused."""
        again = self._deform(image, seed, begin)
        if again.shape != result.shape or not torch.equal(again.nan_to_num(), result.nan_to_num()):
            raise InputError(
                f"{self.name} makes another image of the same one with the same seed: it has randomness or a memory of "
                f"its own, which passes could not repeat; give it torch's, numpy's or Python's global generator."
            )
        _known_to_follow.add(self)

    def to_json(self) -> dict[str, Any]:
        raise InputError(f"{self.name} is another library's and cannot be stored in a run; give it to a Classifier.")

    def __repr__(self) -> str:
        return self.name
