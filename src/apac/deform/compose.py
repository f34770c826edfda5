"""Several deformations as one; consecutive geometric kinds become ONE resampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apac.deform.base import Deformation, prepare
from apac.deform.per_class import PerClass
from apac.deform.warp import Geometric, share, warp
from apac.errors import InputError


@dataclass(frozen=True, eq=False)
class ComposeParameters:
    parts: tuple[Any, ...]  # one draw for each part, in order


@dataclass(frozen=True, init=False, repr=False)
class Compose(Deformation):
    """Deformations applied one after another. `Compose()` is the identity.

    Neighbours that only move pixels, and agree on what lies outside the image, share one interpolation: two would blur
    twice. See `warp.warp` for how their coordinates combine.
    """

    parts: tuple[Deformation, ...]

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

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.parts))})"

    @classmethod
    def _from_arguments(cls, arguments: dict[str, Any]) -> Compose:
        return cls(*arguments["parts"])

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> ComposeParameters:
        return ComposeParameters(tuple(part.sample(n, image_shape, generator=generator) for part in self.parts))

    def apply(self, images: Tensor, parameters: ComposeParameters) -> Tensor:
        for group, draws in self._groups(prepare(images, parameters)):
            images = warp(images, group, draws) if isinstance(group[0], Geometric) else group[0].apply(images, draws[0])
        return images

    def _groups(self, parameters: ComposeParameters) -> list[tuple[list[Any], list[Any]]]:
        """The parts with their draws, those that share a resampling together."""
        groups: list[tuple[list[Any], list[Any]]] = []
        for part, draw in zip(self.parts, parameters.parts, strict=True):
            last = groups[-1][0] if groups else []
            if last and isinstance(last[0], Geometric) and isinstance(part, Geometric) and share(last, part):
                groups[-1][0].append(part)
                groups[-1][1].append(draw)
            else:
                groups.append(([part], [draw]))
        return groups
