"""A sequence of deformations; consecutive geometric ones share one resampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import prod
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from apac import limits, trees
from apac.deform.base import Deformation, InputType, common_input_types
from apac.deform.cpu import apply_in_tiles
from apac.deform.parameters import prepare
from apac.deform.per_class import PerClass
from apac.deform.thickness import Thickness
from apac.deform.warp import Flow, Geometric, can_share_resampling, combined_flow, resample
from apac.errors import InputError
from apac.validation import quoted


class _Group(NamedTuple):
    """Parts that are applied together."""

    parts: list[Any]
    geometric: bool  # stored, because the check of a protocol takes longer than a small tensor operation
    thickness: Thickness | None = None  # follows the resampling of the geometric parts


@dataclass(frozen=True, eq=False)
class ComposeParameters:
    parts: tuple[Any, ...]  # the parameters of each part, in order


@dataclass(frozen=True, init=False, repr=False)
class Compose(Deformation):
    """Deformations applied in sequence. `Compose()` is the identity.

    Consecutive parts that only move pixels and agree on the padding share one interpolation, because two would blur
    twice. See `apac.deform.warp.warp` for how their coordinates combine. The strength scales every part.

    >>> import torch, apac
    >>> u = apac.Compose(apac.Homography(std=0.1), apac.Elastic(sigma=6.0, alpha=38.0), apac.Thickness())
    >>> parameters = u.sample(64, (1, 28, 28), generator=torch.Generator().manual_seed(0))
    >>> u.apply(torch.rand(64, 1, 28, 28), parameters).shape
    torch.Size([64, 1, 28, 28])
    """

    parts: tuple[Deformation, ...]
    # Derived from the parts. Declared as a ClassVar, so that it is not a dataclass field and not compared.
    _groups: ClassVar[list[_Group]]

    def __init__(self, *parts: Deformation) -> None:
        flat: list[Deformation] = []
        for part in parts:
            if not isinstance(part, Deformation):
                raise InputError(f"Compose takes deformations, got {quoted(part)}.")
            if isinstance(part, PerClass):
                raise InputError(
                    "a PerClass cannot be a part of a Compose; compose the deformations of each class instead."
                )
            flat.extend(part.parts if isinstance(part, Compose) else [part])
            if len(flat) > limits.PARTS:
                raise InputError(f"a Compose may have at most {limits.PARTS:,} parts; combine some of them.")
        object.__setattr__(self, "parts", tuple(flat))
        object.__setattr__(self, "_groups", _group(flat))

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.parts))})"

    @classmethod
    def _from_arguments(cls, arguments: dict[str, Any]) -> Compose:
        return cls(*arguments["parts"])

    def scaled(self, strength: float) -> Compose:
        return Compose(*(part.scaled(strength) for part in self.parts))

    @property
    def input_types(self) -> tuple[InputType, ...]:
        return common_input_types(self.parts)

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> ComposeParameters:
        parameters = []
        for part in self.parts:
            parameters.append(part.sample(n, image_shape, generator=generator))
            if part.preprocesses:  # it may resize the images
                _, channels, height, width = part.preprocess(torch.zeros(1, *image_shape)).shape
                image_shape = (channels, height, width)
        return ComposeParameters(tuple(parameters))

    def values(self, image_shape: tuple[int, int, int]) -> ComposeParameters | None:
        """Return all combinations of the values of the parts.

        Raises InputError if there are too many to list; they are counted before.
        """
        parts, counts = [], []
        for part in self.parts:
            values = part.values(image_shape)
            if values is None:
                return None
            parts.append(values)
            counts.append(trees.size(values))
            if prod(counts) * len(self.parts) > limits.LISTED_VALUES:
                allowed = limits.LISTED_VALUES // len(self.parts)
                raise InputError(
                    f"a Compose of {len(self.parts):,} parts may have at most {allowed:,} values to list; sample them "
                    f"with FixedPasses or Certified."
                )
        rows = torch.cartesian_prod(*map(torch.arange, counts)).view(-1, len(counts)) if counts else torch.empty(1, 0)
        return ComposeParameters(tuple(trees.rows(values, rows[:, i]) for i, values in enumerate(parts)))

    def apply(self, images: Tensor, parameters: ComposeParameters) -> Tensor:
        return apply_in_tiles(self._apply, images, prepare(images, parameters))

    def bind(self, images: Tensor, parameters: ComposeParameters, repeats: int = 1) -> Callable[[Tensor], Tensor]:
        prepared = prepare(images, parameters)
        flows: list[Flow | None] = []
        start = 0
        for group in self._groups:
            stop = start + len(group.parts) + (group.thickness is not None)
            own = prepared.parts[start:stop]
            flows.append(combined_flow(group.parts, images, own).repeat(repeats) if group.geometric else None)
            start = stop
        return partial(self._apply, parameters=trees.repeat(prepared, repeats), flows=flows)

    @property
    def expects_pixels(self) -> bool:
        return any(part.expects_pixels for part in self.parts)

    def preprocess(self, images: Tensor) -> Tensor:
        for part in self.parts:
            images = part.preprocess(images)
        return images

    @property
    def preprocesses(self) -> bool:
        return any(part.preprocesses for part in self.parts)

    @property
    def draws_for_batches(self) -> bool:
        return any(part.draws_for_batches for part in self.parts)

    @property
    def thread_safe(self) -> bool:
        return all(part.thread_safe for part in self.parts)

    def _deform(self, images: Tensor, labels: Tensor | None, generator: torch.Generator) -> Tensor:
        """Deform by one part after the other if a part draws for whole batches; consecutive others stay together."""
        if not self.draws_for_batches:
            return super()._deform(images, labels, generator)
        for by_batch, group in groupby(self.parts, key=attrgetter("draws_for_batches")):
            for part in group if by_batch else (Compose(*group),):
                images = part._deform(images, labels, generator)
        return images

    def _apply(
        self, images: Tensor, parameters: ComposeParameters, flows: Sequence[Flow | None] | None = None
    ) -> Tensor:
        start = 0
        for group, flow in zip(self._groups, flows or [None] * len(self._groups), strict=True):
            stop = start + len(group.parts) + (group.thickness is not None)
            group_parameters = parameters.parts[start:stop]
            if group.geometric:
                images = resample(group.parts, images, group_parameters, group.thickness, flow)
            else:
                images = group.parts[0].apply(images, group_parameters[0])
            start = stop
        return images


def _group(parts: list[Deformation]) -> list[_Group]:
    """Group consecutive parts that share a resampling, with the Thickness that follows it, if any."""
    groups: list[_Group] = []
    for part in parts:
        last = groups[-1] if groups and groups[-1].geometric and groups[-1].thickness is None else None
        if last and isinstance(part, Geometric) and can_share_resampling(last.parts, part):
            last.parts.append(part)
        elif last and type(part) is Thickness:
            groups[-1] = last._replace(thickness=part)
        else:
            groups.append(_Group([part], isinstance(part, Geometric)))
    return groups
