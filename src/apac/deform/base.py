"""What a deformation is: a distribution over Θ, and a pure function u(x; Θ)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from apac import trees
from apac.errors import InputError
from apac.trees import Draw


class Deformation(ABC):
    """u(x; Θ). A kind of one's own is a frozen dataclass that overrides `sample` and `apply`, nothing else.

    As frozen dataclasses, deformations compare equal, hash, and print as the call that makes them. Constructor
    arguments are numbers, strings, tuples and other deformations, so that a run can store them as JSON.
    """

    @abstractmethod
    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> Any:
        """Draw Θ n times for images of shape (C, H, W). All randomness is here."""

    @abstractmethod
    def apply(self, images: Tensor, parameters: Any) -> Tensor:
        """Deform images (N, C, H, W), each by its own row of the parameters, or all by a single row.

        Pure: same input, same output, and the input stays as it is. Where nothing changes the result may be the input.
        """

    def __call__(self, images: Tensor, *, generator: torch.Generator, labels: Tensor | None = None) -> Tensor:
        """Deform each image (N, C, H, W) by fresh parameters. Only class-distinctive deformations use the labels."""
        _, channels, height, width = images.shape
        return self.apply(images, self.sample(len(images), (channels, height, width), generator=generator))

    def preprocess(self, images: Tensor) -> Tensor:
        """What every image goes through whatever Θ is, such as a normalization: here nothing. The plain prediction is
        that of these images."""
        return images

    def to_json(self) -> dict[str, Any]:
        """The call that makes this deformation, as something `json.dumps` takes."""
        if not is_dataclass(self):
            raise InputError(f"{type(self).__name__} must be a frozen dataclass, so that a run can store it.")
        return {"kind": _name(type(self)), **{f.name: _to_json(getattr(self, f.name)) for f in fields(self)}}

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> Deformation:
        """The deformation that `to_json` wrote, of any kind that is defined by now."""
        if not isinstance(form, dict) or "kind" not in form:
            raise InputError(f'a deformation in JSON is an object with a "kind", got {form!r}.')
        kind = _kinds().get(form["kind"])
        if kind is None:
            raise InputError(
                f"the deformation {form['kind']!r} is not defined; import the module that defines it first."
            )
        arguments = {name: _from_json(value) for name, value in form.items() if name != "kind"}
        try:
            return kind._from_arguments(arguments)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"the deformation {form['kind']!r} cannot be made from {form!r}: {error}.") from error

    @classmethod
    def _from_arguments(cls, arguments: dict[str, Any]) -> Deformation:
        return cls(**arguments)


def prepare(images: Tensor, parameters: Draw) -> Draw:
    """What every `apply` of this package does first: check its input, bring the parameters to its device."""
    if images.ndim != 4 or not images.is_floating_point() or not images.shape[1:].numel():
        raise InputError(
            f"images must be a floating-point tensor of shape (N, C, H, W), got {images.dtype} of shape "
            f"{tuple(images.shape)}."
        )
    n = trees.size(parameters)
    if n not in (1, len(images)):
        raise InputError(f"{len(images)} images need {len(images)} parameters, or 1 for all of them, got {n}.")
    return trees.to_device(parameters, images.device)


def same_shape(images: Tensor, parameters: Tensor) -> None:
    """Refuse parameters that were drawn for images of another shape."""
    if parameters.shape[1:] != images.shape[1:]:
        raise InputError(
            f"these parameters were drawn for the shape {tuple(parameters.shape[1:])}; draw them for "
            f"{tuple(images.shape[1:])}."
        )


def _kinds() -> dict[str, type[Deformation]]:
    """Every kind that is defined by now; of two with the same name the later."""
    found: dict[str, type[Deformation]] = {}
    pending: list[type[Deformation]] = [*Deformation.__subclasses__()]
    for kind in pending:
        pending.extend(kind.__subclasses__())
        found[_name(kind)] = kind
    return found


def _name(kind: type[Deformation]) -> str:
    """Kinds of this package go by their name alone; others by their module too, so that none takes another's place."""
    own = kind.__module__.startswith("apac.deform.")
    return kind.__name__ if own else f"{kind.__module__}.{kind.__qualname__}"


def _to_json(value: Any) -> Any:
    if isinstance(value, Deformation):
        return value.to_json()
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise InputError(f"a deformation is stored by numbers, strings, tuples and deformations, got {value!r}.")


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return Deformation.from_json(value)
    if isinstance(value, list):
        return tuple(_from_json(item) for item in value)
    return value
