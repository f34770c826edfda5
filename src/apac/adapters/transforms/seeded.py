"""A deformation that wraps a transform which draws from global random generators, and makes it reproducible."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from apac.adapters.transforms.constructor_call import limited
from apac.adapters.transforms.image_transform import ImageTransform
from apac.adapters.transforms.trial import (
    Pipeline,
    SeedAll,
    Shape,
    equal,
    moves_values,
    needs_pixels,
    results_alone,
    why_not_in_batches,
)
from apac.adapters.transforms.undeformed import Undeformed
from apac.deform.base import INPUT_TYPES, Deformation, InputType
from apac.deform.parameters import prepare
from apac.errors import InputError
from apac.randomness import generator as make_generator
from apac.randomness import seeding
from apac.validation import quoted, validate_strength

# Images to try a transform on before those of the caller are known: pipelines accept different sizes.
TRIED_SHAPES = ((3, 32, 32), (1, 28, 28), (3, 256, 256))


@dataclass(frozen=True, eq=False)
class SeededParameters:
    """The seeds that determine the random numbers of the transform."""

    seed: Tensor  # (n,) int64; torch uses 32 bits, so a few of many seeds may coincide


@dataclass(frozen=True)
class Plan:
    """How a transform runs on images of one shape."""

    output_shape: Shape
    in_batches: bool  # images that share a draw share a call
    normalizes: bool  # the random part changes values as a normalization does


@dataclass(frozen=True, eq=False, repr=False)
class SeededTransform(Deformation):
    """A deformation by a transform that draws from the global generators of torch, numpy and Python.

    Images that share parameters are transformed by one call of the library after seeding, if that gives each image the
    same result as alone. This is tried with several seeds before the first use on images of a shape; if it does not,
    every image has a call of its own. Either way, the result does not depend on the other images. No other code may
    draw from the global generators during the call.

    In training (`u(images, generator=...)`), one seed serves the whole batch, and the library draws for each image.
    """

    transform_type: ClassVar[type[ImageTransform]]

    before: ImageTransform | None  # deterministic
    transform: ImageTransform
    after: ImageTransform | None  # deterministic
    _plans: dict[Shape, Plan] = field(init=False, default_factory=dict)
    _warned: list[bool] = field(init=False, default_factory=list)  # of a normalization, once

    @property
    def name(self) -> str:
        return f"{self._json_kind}({self.transform.name})"

    @cached_property
    def expects_pixels(self) -> bool:
        """Whether the random transform clamps to 0 … 1, as libraries do when they change brightness or color."""
        with seeding() as seed_all:
            for image in _accepted_images(self._pipeline, seed_all):
                return needs_pixels(self._pipeline, image, seed_all)
        return False

    @property
    def input_types(self) -> tuple[InputType, ...]:
        """Images; the inputs of a function of one's own are unknown."""
        return ("images",) if self.transform.takes_batches else INPUT_TYPES

    @property
    def thread_safe(self) -> bool:
        """False: the global generators serve one thread at a time."""
        return False

    def scaled(self, strength: float) -> Deformation:
        """Return the pipeline for the strength 1, and its deterministic part for 0; it has no others."""
        strength = validate_strength(strength)
        if strength == 1:
            return self
        if strength == 0:
            return Undeformed(self)
        raise InputError(
            f"{self.name} has the strengths 0 and 1 only, because the arguments of its library are unknown; for "
            f"others, write a Deformation that overrides scaled(strength)."
        )

    @cached_property
    def _pipeline(self) -> Pipeline:
        return Pipeline(self.name, self.before, self.transform, self.after)

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> SeededParameters:
        return SeededParameters(torch.randint(2**62, (n,), generator=generator, device=generator.device))

    def apply(self, images: Tensor, parameters: SeededParameters) -> Tensor:
        parameters = prepare(images, parameters)
        if not len(images):
            return images
        seeds = parameters.seed.tolist()
        with seeding() as seed_all:
            plan = self._plan(images, seed_all)
            if not plan.in_batches:
                seeds = seeds * (len(images) // len(seeds))
                rows = zip(images, seeds, strict=True)
                result = self._pipeline.stack([self._transform(image, seed, seed_all) for image, seed in rows])
            elif len(seeds) == 1:
                result = self._transform(images, seeds[0], seed_all)
            else:
                result = self._by_seed(images, parameters.seed, seed_all)
        self._pipeline.check_shape(tuple(result.shape[1:]), plan.output_shape)
        return result

    def _by_seed(self, images: Tensor, seeds: Tensor, seed_all: SeedAll) -> Tensor:
        """Transform images with seeds (N,), with one call for successive images that share a seed, as in a pass."""
        unique, counts = torch.unique_consecutive(seeds, return_counts=True)
        groups = zip(images.split(counts.tolist()), unique.tolist(), strict=True)
        results = [self._transform(group, seed, seed_all) for group, seed in groups]
        for result in results:
            self._pipeline.check_shape(tuple(result.shape[1:]), tuple(results[0].shape[1:]))
        return torch.cat(results)

    def _transform(self, images: Tensor, seed: int, seed_all: SeedAll) -> Tensor:
        seed_all(seed)
        return self._pipeline.run(images, self._pipeline.parts)

    def _deform(self, images: Tensor, labels: Tensor | None, generator: torch.Generator) -> Tensor:
        if not len(images):
            return images
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        pipeline = self._pipeline
        with seeding() as seed_all:
            plan = self._plan(images, seed_all)
            seed_all(seed)
            if plan.in_batches and self.transform.draws_separately:
                result = pipeline.run(images, pipeline.parts, separately=True)
            else:
                result = pipeline.run_one_by_one(images, pipeline.parts)
        pipeline.check_shape(tuple(result.shape[1:]), plan.output_shape)
        return result

    def preprocess(self, images: Tensor) -> Tensor:
        if not len(images):
            return images
        pipeline = self._pipeline
        with seeding() as seed_all:
            plan = self._plan(images, seed_all)
            run = pipeline.run if plan.in_batches else pipeline.run_one_by_one
            result = run(images, pipeline.deterministic)
        if plan.normalizes:
            self._warn_of_normalization()
        shape = tuple(result.shape[1:])
        if shape != plan.output_shape:
            raise InputError(
                f"{self.name} turns images {tuple(images.shape[1:])} into {plan.output_shape}, but without its random "
                f"part, for the plain prediction, into {shape}; pass after=... with a resize or a crop of fixed size."
            )
        return result

    def _warn_of_normalization(self) -> None:
        if not self._warned:
            self._warned.append(True)
            logging.getLogger("apac").warning(
                "%s changes the values of every image, as a normalization does, and the plain prediction is without "
                "it, which makes APAC look better than it is: pass the normalization as after=... or before=...",
                self.name,
            )

    def _plan(self, images: Tensor, seed_all: SeedAll) -> Plan:
        """Return how to transform images of this shape. The first call tries the transform."""
        shape = tuple(images.shape[1:])
        if shape not in self._plans:
            trial = _random_images(3, shape).to(images)
            alone = results_alone(self._pipeline, trial[0], seed_all)
            in_batches = all(part is None or part.takes_batches for part in self._pipeline.parts)
            if in_batches:
                reason = why_not_in_batches(self._pipeline, trial, alone, seed_all)
                in_batches = reason is None
                if reason and all(plan.in_batches for plan in self._plans.values()):  # one notice for all shapes
                    logging.getLogger("apac").warning("%s runs image by image, which is slow: %s.", self.name, reason)
            normalizes = moves_values(self._pipeline, trial[0], seed_all)
            self._plans[shape] = Plan(tuple(alone[0].shape), in_batches, normalizes)
        return self._plans[shape]

    def to_json(self) -> dict[str, Any]:
        """Return the constructor call as a JSON object, if a copy that is rebuilt from it gives the same images."""
        try:
            payload = self._describe()
        except InputError as error:
            raise InputError(f"{self.name} cannot be stored with a run: {error}") from error
        rebuilt = type(self)._from_payload(payload)
        if not _same_images(self._pipeline, rebuilt._pipeline):
            raise InputError(
                f"{self.name} cannot be stored with a run: a copy with the same constructor arguments gives other "
                f"images; train without a folder for the run and use a Classifier."
            )
        return {"kind": self._json_kind, **payload}

    def _describe(self) -> dict[str, Any]:
        parts = {"transform": self.transform, "before": self.before, "after": self.after}
        return {name: None if part is None else part.describe() for name, part in parts.items()}

    @classmethod
    def _from_payload(cls, payload: dict[str, Any]) -> SeededTransform:
        before, after = (None if payload[name] is None else cls._rebuilt(payload[name]) for name in ("before", "after"))
        return cls(before=before, transform=cls._rebuilt(payload["transform"]), after=after)

    @classmethod
    def _rebuilt(cls, payload: Any) -> ImageTransform:
        rebuilt = cls.transform_type.rebuild(limited(payload))
        if not callable(rebuilt.transform):
            raise InputError(f"{quoted(payload)} does not describe a transform; train the run again.")
        return rebuilt

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other):
            return False
        try:
            return self._describe() == other._describe()
        except InputError:  # without a description, only the object itself is equal
            return False

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name


def _random_images(count: int, shape: Shape) -> Tensor:
    """Return images of random pixels in 0 … 1: on a blank image, most transforms would pass any trial."""
    return torch.rand(count, *shape, generator=make_generator(0, "trial", 0))


def _accepted_images(pipeline: Pipeline, seed_all: SeedAll) -> Iterator[Tensor]:
    """Yield images of the shapes that the pipeline accepts; others are too small, or have too few channels."""
    for shape in TRIED_SHAPES:
        image = _random_images(1, shape)[0]
        try:
            results_alone(pipeline, image, seed_all)
        except InputError:
            continue
        yield image


def _same_images(pipeline: Pipeline, other: Pipeline) -> bool:
    """Whether two pipelines give the same images for each seed, on the first shape that the pipeline accepts."""
    with seeding() as seed_all:
        for image in _accepted_images(pipeline, seed_all):
            return all(map(equal, results_alone(pipeline, image, seed_all), results_alone(other, image, seed_all)))
    return True
