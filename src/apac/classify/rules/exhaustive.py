"""The exact expectation over a deformation with finitely many values: one pass for each of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from apac import trees
from apac.classify.rules.fixed import FixedPasses
from apac.deform.base import Deformation
from apac.errors import InputError
from apac.validation import shortened


@dataclass(frozen=True)
class Exhaustive(FixedPasses):
    """Stops after one pass for each value of the deformation: the expectation itself, without sampling.

    For deformations with finitely many, equally likely values: `Flip`, `Shift` and compositions of them. `passes` is
    the largest number of values; a deformation with more of them is refused. The seed has no effect, and the standard
    errors are 0.

    >>> import apac, torch
    >>> u = apac.Compose(apac.Shift(2), apac.Flip())
    >>> classifier = apac.Classifier(lambda images: images.flatten(1), u, apac.Exhaustive())
    >>> decision = classifier.decide(torch.rand(3, 1, 5, 5))
    >>> decision.passes, decision.stopped
    (tensor([50, 50, 50]), ('exhaustive', 'exhaustive', 'exhaustive'))
    """

    passes: int = 4096
    when_decided: ClassVar[str] = "exhaustive"
    at_limit: ClassVar[str] = "exhaustive"

    def of(self, deformation: Deformation, image_shape: tuple[int, int, int]) -> Exhaustive:
        """Return the rule for the values of a deformation of images of this shape."""
        if deformation.set_of_class is not None:
            raise InputError("Exhaustive takes one deformation for all classes; use FixedPasses with a PerClass.")
        values = deformation.values(image_shape)
        if values is None:
            raise InputError(
                f"{shortened(deformation)} has infinitely many values, or some are likelier than others; use "
                f"FixedPasses or Certified, which sample them."
            )
        count = trees.size(values)
        if count > self.passes:
            raise InputError(
                f"{shortened(deformation)} has {count:,} values, more than the {self.passes:,} passes of the rule; use "
                f"Exhaustive(passes={count}), or sample them with FixedPasses or Certified."
            )
        return replace(self, passes=count)
