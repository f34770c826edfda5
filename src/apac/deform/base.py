"""The base class of deformations: a distribution over parameters Θ, and a pure function u(x; Θ)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from apac import limits, trees
from apac.errors import InputError
from apac.validation import count_objects, measure_json, quoted, shortened, validate_strength

InputType = Literal["vectors", "series", "images"]
INPUT_TYPES: tuple[InputType, ...] = ("vectors", "series", "images")
TRANSFORM_KEYS = frozenset(("class", "__class_fullname__"))  # name the class of a stored transform of another library
OVERSHOOT = 0.5  # tolerance beyond 0 … 1: resizing overshoots less, standardized images exceed it


class Deformation(ABC):
    """A random deformation u(x; Θ).

    To define your own, write a frozen dataclass that overrides `sample` and `apply`.

    Deformations support equality, hashing and pickling, and their repr is the constructor call. Constructor arguments
    are numbers, strings, tuples and other deformations, so that a run can store them as JSON.

    >>> from dataclasses import dataclass
    >>> import torch, apac
    >>> @dataclass(frozen=True)
    ... class Brightness(apac.Deformation):
    ...     std: float = 0.1
    ...
    ...     def sample(self, n, image_shape, *, generator):
    ...         return self.std * torch.randn(n, 1, 1, 1, generator=generator)
    ...
    ...     def apply(self, images, parameters):
    ...         return images + parameters
    >>> u = apac.Compose(Brightness(0.2), apac.Flip())
    >>> u(torch.rand(8, 3, 32, 32), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([8, 3, 32, 32])
    """

    _json_kind: ClassVar[str | None] = None  # the "kind" in JSON; None: the name of the class

    @abstractmethod
    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> Any:
        """Sample parameters for n images of shape (C, H, W). This is the only source of randomness.

        Returns a frozen dataclass (or a tensor, or a tuple) of tensors with leading dimension n.
        """

    @abstractmethod
    def apply(self, images: Tensor, parameters: Any) -> Tensor:
        """Deform images (N, C, H, W) with N parameters, one per image, or with one shared by all images.

        A pure function: the output depends only on the arguments, which are not modified. It may be the input itself.
        """

    def bind(self, images: Tensor, parameters: Any, repeats: int = 1) -> Callable[[Tensor], Tensor]:
        """Return `apply` with these parameters, `repeats` times in a row, for several calls with such images."""
        return partial(self.apply, parameters=trees.repeat(parameters, repeats))

    def __call__(self, images: Tensor, *, generator: torch.Generator, labels: Tensor | int | None = None) -> Tensor:
        """Sample parameters for each image and apply them, for example in your own training loop.

        Takes a batch (N, C, H, W) with labels (N,), or a single image (C, H, W) with its label. Only class-distinctive
        deformations (`PerClass`) use the labels; all others ignore them.
        """
        if not isinstance(images, Tensor) or images.ndim not in (3, 4):
            got = f"the shape {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
            raise InputError(f"images must be a tensor, a batch (N, C, H, W) or one image (C, H, W), got {got}.")
        if not isinstance(generator, torch.Generator):
            raise InputError(f"generator must be a torch.Generator, got {generator!r}.")
        batch = images if images.ndim == 4 else images[None]
        if labels is not None:
            labels = torch.as_tensor(labels).reshape(-1)
        virtual = self._deform(batch, labels, generator)
        return virtual if images.ndim == 4 else virtual[0]

    def _deform(self, images: Tensor, labels: Tensor | None, generator: torch.Generator) -> Tensor:
        """Sample parameters for each image (N, C, H, W) and apply them.

        Transforms of other libraries override this method: many draw for a whole batch faster than for each image.
        """
        n, channels, height, width = images.shape
        parameters = self._sample_for(labels, n, (channels, height, width), generator)
        return self.apply(images, trees.to_device(parameters, images.device))

    def _sample_for(
        self, labels: Tensor | None, n: int, image_shape: tuple[int, int, int], generator: torch.Generator
    ) -> Any:
        """Sample parameters for n images with labels (n,). Only class-distinctive deformations use the labels."""
        return self.sample(n, image_shape, generator=generator)

    def preprocess(self, images: Tensor) -> Tensor:
        """Apply the part that does not depend on the parameters, such as a normalization. The default changes nothing.

        The plain prediction uses the preprocessed images.
        """
        return images

    @property
    def draws_for_batches(self) -> bool:
        """Whether the parameters of an image depend on its batch, as in transforms of other libraries."""
        return type(self)._deform is not Deformation._deform

    @property
    def preprocesses(self) -> bool:
        """Whether `preprocess` changes the images."""
        return type(self).preprocess is not Deformation.preprocess

    def values(self, image_shape: tuple[int, int, int]) -> Any | None:
        """Return all values of the parameters, one row each, if they are finitely many and equally likely.

        `Exhaustive` averages over them. The default, None, is right for every continuous distribution.
        """
        return None

    def scaled(self, strength: float) -> Deformation:
        """Return the deformation with another strength: 0 is the identity, 1 is the deformation itself.

        Widths, amplitudes and probabilities are multiplied by the strength, so that the same generator gives similar
        parameters, only smaller. A strength above 1 exaggerates; probabilities end at their maximum. The docstring of
        each kind tells what is scaled. Preprocessing stays as it is.

        To make a deformation of your own tunable, override this method, for example by
        `return dataclasses.replace(self, std=strength * self.std)`.

        >>> import apac
        >>> apac.Homography(std=0.1).scaled(0.5), apac.Homography(std=0.1).scaled(0)
        (Homography(std=0.05, padding=0.0), Compose())
        """
        from apac.deform.compose import Compose  # it imports this module

        strength = validate_strength(strength)
        scaled = self._scaled(strength or 1.0)  # raises for a deformation without strength, whatever the number
        if strength == 1:
            return self
        return scaled if strength else Compose()  # which is exact, where a resampling rounds

    def _scaled(self, strength: float) -> Deformation:
        """Return the deformation with a strength above 0; the kinds of this package override it."""
        name = type(self).__name__
        raise InputError(
            f"{name} has no strength; override {name}.scaled(strength), which returns the identity for 0, the "
            f"deformation itself for 1, and what lies between and beyond."
        )

    @property
    def thread_safe(self) -> bool:
        """Whether several threads may call `apply` at the same time and gain from it."""
        return True

    @property
    def expects_pixels(self) -> bool:
        """Whether the deformation is meant for values in 0 … 1, because it clamps them or scales them nonlinearly."""
        return False

    def validate_pixels(self, images: Tensor) -> None:
        """Raise InputError if the deformation expects values in 0 … 1 and the images are far outside."""
        if not self.expects_pixels or not images.numel():
            return
        low, high = images.min().item(), images.max().item()
        if low < -OVERSHOOT or high > 1 + OVERSHOOT:
            raise InputError(
                f"{self} expects pixels in 0 … 1, got values from {low:.3g} to {high:.3g}; scale them to 0 … 1, and "
                f"standardize after the deformation, for example in the first layer of the network."
            )

    @property
    def input_types(self) -> tuple[InputType, ...]:
        """The data that this deformation is made for; `ApacClassifier` refuses others. The default is all of them."""
        return INPUT_TYPES

    @property
    def sets(self) -> tuple[Deformation, ...]:
        """The class-indistinctive deformations: only this one, unless classes have their own (`PerClass`)."""
        return (self,)

    @property
    def set_of_class(self) -> tuple[int, ...] | None:
        """For each class, the index of its deformation in `sets`; None if all classes share one."""
        return None

    def validate_classes(self, classes: int) -> None:
        """Raise InputError if classes have their own deformations and their number differs from `classes`."""
        if self.set_of_class is not None and len(self.set_of_class) != classes:
            raise InputError(
                f"the PerClass has {len(self.set_of_class)} classes, but the network or the data has {classes}; "
                f"pass classes={classes} to PerClass."
            )

    def to_json(self) -> dict[str, Any]:
        """Return the constructor call as a JSON object."""
        if not is_dataclass(self):
            raise InputError(f"{type(self).__name__} must be a frozen dataclass, so that a run can store it.")
        return {"kind": _name(type(self)), **{f.name: _to_json(getattr(self, f.name)) for f in fields(self)}}

    @classmethod
    def from_json(cls, payload: dict[str, Any]) -> Deformation:
        """Build the deformation that `to_json` describes. The module that defines its class must be imported."""
        check_stored(payload)
        return _build(payload)

    @classmethod
    def _from_payload(cls, payload: dict[str, Any]) -> Deformation:
        return cls._from_arguments({name: _from_json(value) for name, value in payload.items()})

    @classmethod
    def _from_arguments(cls, arguments: dict[str, Any]) -> Deformation:
        return cls(**arguments)


def check_stored(payload: dict[str, Any]) -> None:
    """Raise InputError if a deformation in JSON is too large to be loaded again."""
    depth, objects = measure_json(payload)
    if depth > limits.JSON_DEPTH or objects > limits.DEFORMATIONS:
        raise InputError(
            f"a deformation in JSON may have {limits.JSON_DEPTH} levels and {limits.DEFORMATIONS:,} parts, this one "
            f"has more; pass it to a Classifier instead of storing it."
        )
    if (transforms := count_objects(payload, TRANSFORM_KEYS)) > limits.STORED_TRANSFORMS:
        raise InputError(
            f"a deformation in JSON may have {limits.STORED_TRANSFORMS} transforms of other libraries, this one has "
            f"{transforms:,}; pass it to a Classifier instead of storing it."
        )


def common_input_types(parts: Iterable[Deformation]) -> tuple[InputType, ...]:
    """Return the input types that all parts are made for."""
    return tuple(kind for kind in INPUT_TYPES if all(kind in part.input_types for part in parts))


def size_factor(reference_size: int | None, image_size: tuple[int, int]) -> float:
    """Return how many times larger an image (H, W) is than `reference_size`, by its shorter side; 1 for None."""
    return 1.0 if reference_size is None else min(image_size) / reference_size


def _kinds() -> dict[str, type[Deformation]]:
    """Return all subclasses by name; a later definition replaces an earlier one of the same name."""
    kinds: dict[str, type[Deformation]] = {}
    pending: list[type[Deformation]] = [*Deformation.__subclasses__()]
    for kind in pending:
        pending.extend(kind.__subclasses__())
        kinds[_name(kind)] = kind
    return kinds


def _name(kind: type[Deformation]) -> str:
    """Return the class name, with the module unless the class belongs to this package, whose names are reserved."""
    if kind._json_kind is not None:
        return kind._json_kind
    built_in = kind.__module__.startswith("apac.deform.")
    return kind.__name__ if built_in else f"{kind.__module__}.{kind.__qualname__}"


def _build(payload: Any) -> Deformation:
    name = payload.get("kind") if isinstance(payload, dict) else None
    if not isinstance(name, str):
        raise InputError(f'a deformation in JSON is an object with a "kind", got {quoted(payload)}.')
    kind = _kinds().get(name)
    if kind is None:
        raise InputError(f"the deformation {quoted(name)} is not defined; import the module that defines it first.")
    try:
        return kind._from_payload({key: value for key, value in payload.items() if key != "kind"})
    except InputError:
        raise
    except Exception as error:  # a class of the user's may raise any exception
        raise InputError(
            f"the deformation {name!r} cannot be constructed from {quoted(payload)}: {shortened(error)}."
        ) from error


def _to_json(value: Any) -> Any:
    if isinstance(value, Deformation):
        return value.to_json()
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise InputError(
        f"the arguments of a deformation must be numbers, strings, tuples or deformations to be stored, got {value!r}."
    )


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return _build(value)
    if isinstance(value, list):
        return tuple(_from_json(item) for item in value)
    return value
