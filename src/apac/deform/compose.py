"""Several deformations as one; consecutive geometric kinds become ONE resampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from apac.deform.base import Deformation, prepare
from apac.deform.cpu import by_tiles
from apac.deform.per_class import PerClass
from apac.deform.thickness import Thickness
from apac.deform.warp import Geometric, resample, share
from apac.errors import InputError


@dataclass(frozen=True, eq=False)
class ComposeParameters:
    parts: tuple[Any, ...]  # one draw for each part, in order


@dataclass(frozen=True, init=False, repr=False)
class Compose(Deformation):
    """Deformations applied one after another. `Compose()` is the identity.

    Neighbors that only move pixels, and agree on what lies outside the image, share one interpolation: two would blur
    twice. See `warp.warp` for how their coordinates combine.
    """

    parts: tuple[Deformation, ...]
    _groups: ClassVar[list[tuple[list[Any], Thickness | None]]]  # of the instance; no field of what it is

    def __init__(self, *parts: Deformation) -> None:
        flat: list[Deformation] = []
        for part in parts:
            if not isinstance(part, Deformation):
                raise InputError(f"Compose takes deformations, got {part!r}.")
            if isinstance(part, PerClass):
                raise InputError(
                    "a PerClass cannot be a part of a Compose; compose the deformations of each class instead."
                )
            flat.extend(part.parts if isinstance(part, Compose) else [part])
        object.__setattr__(self, "parts", tuple(flat))
        object.__setattr__(self, "_groups", _groups(flat))

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.parts))})"

    @classmethod
    def _from_arguments(cls, arguments: dict[str, Any]) -> Compose:
        return cls(*arguments["parts"])

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> ComposeParameters:
        parts = []
        for part in self.parts:
            parts.append(part.sample(n, image_shape, generator=generator))
            if type(part).preprocess is not Deformation.preprocess:  # such as a resize
                _, channels, height, width = part.preprocess(torch.zeros(1, *image_shape)).shape
                image_shape = (channels, height, width)
        return ComposeParameters(tuple(parts))

    def apply(self, images: Tensor, parameters: ComposeParameters) -> Tensor:
        return by_tiles(self._apply, images, prepare(images, parameters))

    def preprocess(self, images: Tensor) -> Tensor:
        for part in self.parts:
            images = part.preprocess(images)
        return images

    def _apply(self, images: Tensor, parameters: ComposeParameters) -> Tensor:
        start = 0
        for group, thickness in self._groups:
            stop = start + len(group) + (thickness is not None)
            draws = parameters.parts[start:stop]
            if isinstance(group[0], Geometric):
                images = resample(group, images, draws, thickness)
            else:
                images = group[0].apply(images, draws[0])
            start = stop
        return images


def _groups(parts: list[Deformation]) -> list[tuple[list[Any], Thickness | None]]:
    """The parts in order, those that share a resampling together, with the thickness that follows it."""
    groups: list[tuple[list[Any], Thickness | None]] = []
    for part in parts:
        group, thickness = groups[-1] if groups else ([], None)
        open_ = bool(group) and isinstance(group[0], Geometric) and thickness is None
        if open_ and isinstance(part, Geometric) and share(group, part):
            group.append(part)
        elif open_ and type(part) is Thickness:
            groups[-1] = (group, part)
        else:
            groups.append(([part], None))
    return groups
