"""Class-distinctive deformation: p(Θ | c), sharing sets where classes share them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from apac import trees
from apac.deform.base import Deformation, prepare
from apac.errors import InputError


@dataclass(frozen=True, eq=False)
class PerClassParameters:
    set_index: Tensor  # (n,) int64, into PerClass.sets
    per_set: tuple[Any, ...]  # a draw of n from each set; row i of set set_index[i] is the one in use


@dataclass(frozen=True, init=False, repr=False)
class PerClass(Deformation):
    """Each class has its own deformation: those of `by_class`, and `default` for the rest.

    Training deforms a sample by the set of its class. Deciding scores class c by the passes of c's own set: N_d sets
    of M passes each (paper, eq. 8). `Compose()` turns deformation off for a class.
    """

    by_class: tuple[tuple[int, Deformation], ...]
    default: Deformation | None
    classes: int

    def __init__(
        self, by_class: Mapping[int, Deformation], default: Deformation | None = None, *, classes: int
    ) -> None:
        if not (isinstance(classes, Integral) and classes >= 1):
            raise InputError(f"the classes of a PerClass must be a whole number of at least 1, got {classes!r}.")
        if not all(isinstance(c, Integral) for c in by_class):
            raise InputError(f"PerClass names classes by whole numbers, got {list(by_class)}.")
        unknown = sorted(c for c in by_class if not 0 <= c < classes)
        if unknown:
            raise InputError(f"PerClass names class {unknown[0]}, but {classes} classes run from 0 to {classes - 1}.")
        missing = sorted(set(range(classes)) - set(by_class))
        if missing and default is None:
            raise InputError(
                f"PerClass leaves class {', '.join(map(str, missing))} without a deformation; give a default."
            )
        for member in [*by_class.values(), *([] if default is None else [default])]:
            if not isinstance(member, Deformation) or isinstance(member, PerClass):
                raise InputError(f"PerClass takes class-indistinctive deformations, got {member!r}.")
        object.__setattr__(self, "by_class", tuple(sorted((int(c), member) for c, member in by_class.items())))
        object.__setattr__(self, "default", default)
        object.__setattr__(self, "classes", int(classes))

    def __repr__(self) -> str:
        return f"PerClass({dict(self.by_class)!r}, default={self.default!r}, classes={self.classes})"

    @classmethod
    def _from_arguments(cls, arguments: dict[str, Any]) -> PerClass:
        return cls(dict(arguments["by_class"]), arguments["default"], classes=arguments["classes"])

    @property
    def of_class(self) -> tuple[Deformation, ...]:
        """The deformation of each class, by its number."""
        named = dict(self.by_class)
        return tuple(named.get(c) or self.default for c in range(self.classes))  # type: ignore[misc]

    @property
    def sets(self) -> tuple[Deformation, ...]:
        """The N_d different deformations, in the order of the first class that has each."""
        return tuple(dict.fromkeys(self.of_class))

    @property
    def set_of_class(self) -> tuple[int, ...]:
        """For each class, which of `sets` is its own."""
        sets = self.sets
        return tuple(sets.index(deformation) for deformation in self.of_class)

    def sample(
        self,
        n: int,
        image_shape: tuple[int, int, int],
        *,
        generator: torch.Generator,
        labels: Tensor | None = None,
    ) -> PerClassParameters:
        if labels is None:
            raise InputError("PerClass deforms a sample by its class: give sample the labels.")
        if labels.is_floating_point() or labels.dtype == torch.bool:
            raise InputError(f"labels must be whole numbers, got {labels.dtype}.")
        if len(labels) != n:
            raise InputError(f"{n} parameters need {n} labels, got {len(labels)}.")
        if n and not 0 <= int(labels.min()) <= int(labels.max()) < self.classes:
            raise InputError(
                f"labels must be between 0 and {self.classes - 1}, got {int(labels.min())} to {int(labels.max())}."
            )
        set_index = torch.tensor(self.set_of_class, device=labels.device)[labels.long()]
        per_set = tuple(member.sample(n, image_shape, generator=generator) for member in self.sets)
        return PerClassParameters(set_index.to(generator.device), per_set)

    def __call__(self, images: Tensor, *, generator: torch.Generator, labels: Tensor | None = None) -> Tensor:
        _, channels, height, width = images.shape
        parameters = self.sample(len(images), (channels, height, width), generator=generator, labels=labels)
        return self.apply(images, parameters)

    def preprocess(self, images: Tensor) -> Tensor:
        """That of the first set: what is the same for every Θ is the same for every class."""
        return self.sets[0].preprocess(images)

    def apply(self, images: Tensor, parameters: PerClassParameters) -> Tensor:
        parameters = prepare(images, parameters)
        if len(parameters.set_index) == 1:
            chosen = int(parameters.set_index)
            return self.sets[chosen].apply(images, parameters.per_set[chosen])
        result: Tensor | None = None
        for index, (member, draw) in enumerate(zip(self.sets, parameters.per_set, strict=True)):
            own = parameters.set_index == index
            if own.any():
                virtual = member.apply(images[own], trees.rows(draw, own))
                result = virtual.new_empty(len(images), *virtual.shape[1:]) if result is None else result
                result[own] = virtual
        return images if result is None else result
