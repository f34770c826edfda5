"""Class-distinctive deformation: a distribution p(Θ | c) for each class c."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from apac import limits, trees
from apac.deform.base import Deformation, InputType, common_input_types
from apac.deform.parameters import prepare
from apac.errors import InputError
from apac.validation import quoted


@dataclass(frozen=True, eq=False)
class PerClassParameters:
    set_index: Tensor  # (n,) int64, into PerClass.sets
    per_set: tuple[Any, ...]  # n parameters of each set; image i uses row i of set set_index[i]


@dataclass(frozen=True, init=False, repr=False)
class PerClass(Deformation):
    """A deformation for each class: `by_class` for the classes that it names, `default` for the others.

    Training deforms each sample with the deformation of its class. A decision scores class c with the passes of the
    deformation of c: N_d different deformations with M passes each (paper, eq. 8). `Compose()` disables deformation for
    a class. The strength scales the deformation of every class.

    >>> import torch, apac
    >>> u = apac.PerClass({1: apac.Homography(std=0.05)}, default=apac.presets.mnist(), classes=10)
    >>> images, labels = torch.rand(4, 1, 28, 28), torch.tensor([0, 1, 7, 9])
    >>> u(images, labels=labels, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([4, 1, 28, 28])
    """

    by_class: tuple[tuple[int, Deformation], ...]
    default: Deformation | None
    classes: int

    def __init__(
        self, by_class: Mapping[int, Deformation], default: Deformation | None = None, *, classes: int
    ) -> None:
        if not (isinstance(classes, Integral) and 1 <= classes <= limits.CLASSES):
            raise InputError(
                f"the classes of a PerClass must be an integer of at least 1 and at most {limits.CLASSES:,}, got "
                f"{quoted(classes)}."
            )
        if len(by_class) > limits.PARTS:
            raise InputError(f"a PerClass may name at most {limits.PARTS:,} classes; give the others a default.")
        if not all(isinstance(c, Integral) for c in by_class):
            raise InputError(f"the classes of a PerClass must be integers, got {quoted(list(by_class))}.")
        unknown = sorted(c for c in by_class if not 0 <= c < classes)
        if unknown:
            first = quoted(unknown[0])
            raise InputError(f"the classes of a PerClass must be between 0 and {classes - 1}, got {first}.")
        missing = sorted(set(range(classes)) - set(by_class))
        if missing and default is None:
            named = ", ".join(map(str, missing[:10])) + (", …" if len(missing) > 10 else "")
            raise InputError(f"PerClass has no deformation for class {named}; pass default=...")
        for member in [*by_class.values(), *([] if default is None else [default])]:
            if not isinstance(member, Deformation) or isinstance(member, PerClass):
                raise InputError(f"PerClass takes class-indistinctive deformations, got {quoted(member)}.")
        object.__setattr__(self, "by_class", tuple(sorted((int(c), member) for c, member in by_class.items())))
        object.__setattr__(self, "default", default)
        object.__setattr__(self, "classes", int(classes))

    def __repr__(self) -> str:
        return f"PerClass({dict(self.by_class)!r}, default={self.default!r}, classes={self.classes})"

    @classmethod
    def _from_arguments(cls, arguments: dict[str, Any]) -> PerClass:
        return cls(dict(arguments["by_class"]), arguments["default"], classes=arguments["classes"])

    def scaled(self, strength: float) -> PerClass:
        default = None if self.default is None else self.default.scaled(strength)
        return PerClass({c: member.scaled(strength) for c, member in self.by_class}, default, classes=self.classes)

    @property
    def input_types(self) -> tuple[InputType, ...]:
        return common_input_types(self.of_class)

    @property
    def of_class(self) -> tuple[Deformation, ...]:
        """The deformation of each class, by class index."""
        named = dict(self.by_class)
        return tuple(named.get(c) or self.default for c in range(self.classes))  # type: ignore[misc]

    @property
    def sets(self) -> tuple[Deformation, ...]:
        """The N_d different deformations, in the order of the first class that uses each."""
        return tuple(dict.fromkeys(self.of_class))

    @property
    def set_of_class(self) -> tuple[int, ...]:
        """For each class, the index of its deformation in `sets`."""
        index = {deformation: i for i, deformation in enumerate(self.sets)}
        return tuple(index[deformation] for deformation in self.of_class)

    def sample(
        self,
        n: int,
        image_shape: tuple[int, int, int],
        *,
        generator: torch.Generator,
        labels: Tensor | None = None,
    ) -> PerClassParameters:
        if labels is None:
            raise InputError("PerClass deforms a sample according to its class; pass labels=...")
        if labels.is_floating_point() or labels.dtype == torch.bool:
            raise InputError(f"labels must be integers, got {labels.dtype}.")
        if len(labels) != n:
            raise InputError(f"{n} parameters need {n} labels, got {len(labels)}.")
        if n and not 0 <= int(labels.min()) <= int(labels.max()) < self.classes:
            raise InputError(
                f"labels must be between 0 and {self.classes - 1}, got {int(labels.min())} to {int(labels.max())}."
            )
        set_index = torch.tensor(self.set_of_class, device=labels.device)[labels.long()]
        per_set = tuple(member.sample(n, image_shape, generator=generator) for member in self.sets)
        return PerClassParameters(set_index.to(generator.device), per_set)

    def _sample_for(
        self, labels: Tensor | None, n: int, image_shape: tuple[int, int, int], generator: torch.Generator
    ) -> PerClassParameters:
        return self.sample(n, image_shape, generator=generator, labels=labels)

    @property
    def thread_safe(self) -> bool:
        return all(member.thread_safe for member in self.sets)

    @property
    def expects_pixels(self) -> bool:
        return any(member.expects_pixels for member in self.sets)

    def preprocess(self, images: Tensor) -> Tensor:
        """Preprocess as the first set does: preprocessing is the same for all classes."""
        return self.sets[0].preprocess(images)

    @property
    def preprocesses(self) -> bool:
        return self.sets[0].preprocesses

    def apply(self, images: Tensor, parameters: PerClassParameters) -> Tensor:
        parameters = prepare(images, parameters)
        if len(parameters.set_index) == 1:
            index = int(parameters.set_index)
            return self.sets[index].apply(images, parameters.per_set[index])
        result: Tensor | None = None
        for index, (member, member_parameters) in enumerate(zip(self.sets, parameters.per_set, strict=True)):
            selected = parameters.set_index == index
            if selected.any():
                virtual = member.apply(images[selected], trees.rows(member_parameters, selected))
                result = virtual.new_empty(len(images), *virtual.shape[1:]) if result is None else result
                result[selected] = virtual
        return images if result is None else result
