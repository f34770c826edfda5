"""The choice of a strength, a combination and temperatures, which `apac.tune` makes on held-out images."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from apac import limits
from apac.classify.classifier import Classifier
from apac.classify.combine import COMBINATIONS, Combine
from apac.classify.rules.base import Rule
from apac.classify.rules.exhaustive import Exhaustive
from apac.classify.rules.fixed import FixedPasses
from apac.errors import InputError
from apac.validation import MAX_INTEGER, validate_integer, validate_number

WHY_PLAIN = (
    "the network may be too small or too briefly trained to fit its deformed training images, or these may vary more "
    "than the images to decide"
)


@dataclass(frozen=True)
class Candidate:
    """One way to decide, measured on the held-out images. Strength 0 is the plain prediction."""

    strength: float
    combine: Combine
    error: float  # fraction of the images
    nll: float  # negative log-likelihood after a temperature that is fitted on other images
    nll_error: float  # standard error of the mean over the images
    above_best: float  # difference in `nll` from the best candidate
    above_best_error: float  # standard error of that difference, image by image
    temperatures: tuple[tuple[int, float], ...]  # (M, temperature) by increasing M

    def __post_init__(self) -> None:
        for name in ("strength", "error", "nll", "nll_error", "above_best_error"):
            validate_number(self, name, minimum=0)
        validate_number(self, "above_best")
        if self.combine not in COMBINATIONS:
            raise InputError(f"the combine of a Candidate must be one of {', '.join(COMBINATIONS)}.")
        numbers, values = [m for m, _ in self.temperatures], [t for _, t in self.temperatures]
        valid = all(isinstance(m, int) and 1 <= m <= MAX_INTEGER for m in numbers)
        lowest, highest = limits.TEMPERATURE
        valid = valid and all(lowest <= t <= highest for t in values)
        if not (numbers and valid and numbers == sorted(set(numbers))):
            raise InputError(
                f"the temperatures of a Candidate must be numbers from {lowest:g} to {highest:g}, by increasing M."
            )

    def temperature(self, rule: Rule) -> float:
        """Return the temperature for a rule: interpolated in log M, and that of the largest M if M is not fixed."""
        if not isinstance(rule, FixedPasses):
            return self.temperatures[-1][1]
        for (before, low), (after, high) in pairwise(self.temperatures):
            if rule.passes <= after:
                weight = max(0.0, math.log(rule.passes / before) / math.log(after / before))
                return low + weight * (high - low)
        return self.temperatures[-1][1]

    def __str__(self) -> str:
        return f"strength {self.strength:g}, {self.combine}" if self.strength else "the plain prediction"


@dataclass(frozen=True)
class Choice:
    """How a network decides best: with which strength of its deformation, by product or by sum, and how confident.

    `apply` makes a classifier that decides so. A run stores its choice and decides by it, see `Run.choice`.

    >>> import apac, torch
    >>> classifier = apac.Classifier(lambda images: images.flatten(1), apac.Jitter(0.1), apac.FixedPasses(4))
    >>> images, labels = torch.eye(2).repeat(30, 1).view(60, 1, 1, 2), torch.arange(60) % 2
    >>> choice = apac.tune(classifier, images, labels)
    >>> choice.strength, choice.combine
    (1.0, 'product')
    """

    strength: float
    combine: Combine
    images: int
    passes: int  # M of the comparison
    seed: int
    gain: float  # how much `nll` is below that of the plain prediction
    gain_error: float  # standard error of that difference, image by image
    candidates: tuple[Candidate, ...]  # the plain prediction first
    notes: tuple[str, ...] = ()  # what limits the comparison, in sentences

    def __post_init__(self) -> None:
        for name in ("images", "passes"):
            validate_integer(self, name, minimum=1)
        validate_integer(self, "seed")
        validate_number(self, "strength", minimum=0, maximum=limits.FACTOR)
        validate_number(self, "gain")
        validate_number(self, "gain_error", minimum=0)
        keys = [(candidate.strength, candidate.combine) for candidate in self.candidates]
        if (self.strength, self.combine) not in keys or keys[0][0]:
            raise InputError("the candidates of a Choice must include the chosen one, and the first must be plain.")
        if not all(isinstance(note, str) for note in self.notes):
            raise InputError("the notes of a Choice must be sentences.")

    @property
    def plain(self) -> Candidate:
        return self.candidates[0]

    @property
    def chosen(self) -> Candidate:
        return self.candidate(self.combine)

    def candidate(self, combine: Combine) -> Candidate:
        """Return the candidate with the strength of the choice and this combination."""
        same = [candidate for candidate in self.candidates if candidate.strength == self.strength]
        return next((candidate for candidate in same if candidate.combine == combine), same[0])

    def apply(self, classifier: Classifier, combine: Combine | None = None) -> Classifier:
        """Return the classifier with this choice; its deformation is the one that was tuned, at strength 1.

        `combine` overrides that of the choice. If the plain prediction is chosen, one pass decides. `Exhaustive` stays
        at strength 1 only: the values of a scaled deformation may not be equally likely, so that random passes decide,
        as many as were compared.
        """
        combine = combine or self.combine
        rule = classifier.rule
        if isinstance(rule, Exhaustive) and self.strength != 1:
            rule = FixedPasses(self.passes)
        if not self.strength:
            rule = FixedPasses(1)
        return replace(
            classifier,
            deformation=classifier.deformation.scaled(self.strength),
            rule=rule,
            combine=combine,
            temperature=self.candidate(combine).temperature(rule),
        )

    def __str__(self) -> str:
        temperature = f"temperature {self.chosen.temperatures[-1][1]:.3g}"
        return f"{self.chosen}, {temperature} (tuned on {self.images:,} images)"

    @property
    def advice(self) -> str:
        """What to do, and why, in sentences."""
        chosen, plain = self.chosen, self.plain
        once = f"at one pass instead of {self.passes:,}"
        if not self.strength:
            best = min(self.candidates[1:], key=lambda candidate: candidate.nll)
            difference = best.nll - plain.nll
            error = max(best.above_best_error, plain.above_best_error)  # one of the two is the best, and has 0
            compared = (
                f"its calibrated negative log-likelihood is {plain.nll:.4f}, that of the best of APAC {best.nll:.4f} "
                f"({best}); the difference of {difference:.4f} ± {error:.4f}"
            )
            if difference <= 2 * error:
                return f"Decide by plain prediction, which may be as good here, {once}: {compared} may be chance."
            return (
                f"Plain prediction is the better choice for this network: {compared} is more than chance. This may be "
                f"because {WHY_PLAIN}."
            )
        paper = "the paper's rule, " if (self.strength, self.combine) == (1, "product") else ""
        compared = (
            f"the calibrated negative log-likelihood of APAC is {chosen.nll:.4f}, that of the plain prediction "
            f"{plain.nll:.4f}; the difference of {self.gain:.4f} ± {self.gain_error:.4f}"
        )
        if self.gain <= 2 * self.gain_error:
            return (
                f"The choice is APAC with {paper}{chosen}, but plain prediction may be as good here, {once}: "
                f"{compared} may be chance."
            )
        return f"Decide by APAC with {paper}{chosen}: {compared} is more than chance."

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(payload: dict[str, Any]) -> Choice:
        candidates = tuple(
            Candidate(**{**item, "temperatures": tuple((m, t) for m, t in item["temperatures"])})
            for item in payload["candidates"]
        )
        return Choice(**{**payload, "candidates": candidates, "notes": tuple(payload["notes"])})
