"""How often answers of a given probability were right: measured once, and quoted beside later answers."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from apac.classify.choice import Choice
from apac.classify.classifier import Classifier
from apac.classify.combine import Combine
from apac.classify.rules.base import Rule
from apac.classify.rules.certified import Certified
from apac.classify.rules.fixed import FixedPasses
from apac.classify.scores import rank
from apac.deform.base import Deformation
from apac.deform.compose import Compose
from apac.errors import StorageError
from apac.evaluation.calibration import with_temperature
from apac.evaluation.measures import CalibratedScores
from apac.runs.folder_lock import locked
from apac.runs.storage import read_json, write_json
from apac.validation import to_float

FILE = "reliability.json"
# Groups of probabilities; finer close to 1, where most answers of a good network are.
BOUNDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9999, 1.0)
MIN_IMAGES = 20  # of a group; smaller ones are merged with their neighbors
MANY_PASSES = 64  # whose probabilities are close to those of a certified decision


@dataclass(frozen=True)
class ReliabilityBin:
    """Test images whose answers had a probability like that of a new answer."""

    images: int
    right: int
    low: float  # range of the probabilities
    high: float

    @property
    def accuracy(self) -> float:
        """The share of the right answers."""
        return self.right / self.images


@dataclass(frozen=True)
class Reliability:
    """How often the answers of one rule were right, by their probability.

    It holds for answers with the same deformation and temperature only.
    """

    rule: str  # "plain", "product" or "sum"
    passes: int | None  # None for a certified rule
    temperature: float
    deformation: str  # digest
    images: tuple[int, ...]  # (G,) of each group of answers, by increasing probability
    right: tuple[int, ...]  # (G,)
    bounds: tuple[float, ...]  # (G,) largest probability of the group; the last one is 1
    certified: tuple[float, int] | None = None  # error and limit of a certified rule

    def bin_of(self, probability: float) -> ReliabilityBin:
        """Return the group of answers to which this probability belongs.

        >>> of = Reliability("product", 64, 1.0, "", images=(60, 50), right=(30, 49), bounds=(0.6, 1.0))
        >>> of.bin_of(0.7)
        ReliabilityBin(images=50, right=49, low=0.6, high=1.0)
        """
        group = min(bisect_left(self.bounds, probability), len(self.bounds) - 1)
        low = self.bounds[group - 1] if group else 0.0
        return ReliabilityBin(self.images[group], self.right[group], low, self.bounds[group])


def measure_reliability(
    rule: str,
    passes: int | None,
    log_probabilities: Tensor,
    correct: Tensor,
    *,
    temperature: float,
    deformation: Deformation,
    certified: Certified | None = None,
) -> Reliability:
    """Group images by the probability of their answer, at least 20 images in each group."""
    inner = torch.tensor(BOUNDS[:-1], dtype=torch.float64)
    index = torch.bucketize(log_probabilities.amax(dim=1).exp().double(), inner)
    images, right = (torch.bincount(index[mask], minlength=len(BOUNDS)) for mask in (slice(None), correct))
    groups = _merge(list(zip(images.tolist(), right.tolist(), BOUNDS, strict=True)))
    return Reliability(
        rule=rule,
        passes=passes,
        temperature=temperature,
        deformation=digest(deformation),
        images=tuple(images for images, _, _ in groups),
        right=tuple(right for _, right, _ in groups),
        bounds=tuple(bound for _, _, bound in groups),
        certified=None if certified is None else (certified.error, certified.limit),
    )


def measure_each(
    rules: Iterable[CalibratedScores],
    labels: Tensor,
    deformation: Deformation,
    temperature: Callable[[str, int], float],
) -> list[Reliability]:
    """Return the reliability of each rule on images with labels (N,), at its temperature for its passes."""
    return [
        measure_reliability(
            part.rule,
            int(part.passes),
            with_temperature(part.scores, temperature(part.rule, int(part.passes))),
            rank(part.scores)[:, 0] == labels,
            temperature=temperature(part.rule, int(part.passes)),
            deformation=Compose() if part.rule == "plain" else deformation,
        )
        for part in rules
    ]


def temperatures(choice: Choice | None) -> Callable[[str, int], float]:
    """Return the function from a rule and its passes to the temperature that was chosen for it; 1 without a choice."""

    def temperature(rule: str, passes: int) -> float:
        if choice is None:
            return 1.0
        candidate = choice.plain if rule == "plain" else choice.candidate(cast(Combine, rule))
        return candidate.temperature(FixedPasses(passes))

    return temperature


def _merge(parts: list[tuple[int, int, float]]) -> list[tuple[int, int, float]]:
    """Merge neighboring groups (images, right, bound) until each has enough images, or only one is left."""
    groups: list[tuple[int, int, float]] = []
    pending = (0, 0)
    for images, right, bound in parts:
        pending = (pending[0] + images, pending[1] + right)
        if pending[0] >= MIN_IMAGES:
            groups.append((*pending, bound))
            pending = (0, 0)
    last = groups.pop() if groups else (0, 0, 1.0)
    return [*groups, (last[0] + pending[0], last[1] + pending[1], parts[-1][2])]


def digest(deformation: Deformation) -> str:
    """Return a hash of a deformation, the same on every machine."""
    described = json.dumps(deformation.to_json(), sort_keys=True)
    return hashlib.blake2b(described.encode(), digest_size=8).hexdigest()


def store(folder: Path, measured: Iterable[Reliability]) -> Path:
    """Write what was measured to the folder; what is stored there about other rules stays. Return the path.

    Results on fewer than `MIN_IMAGES` images are not stored.
    """
    new = {_key(part): part for part in measured if sum(part.images) >= MIN_IMAGES}
    with locked(folder):  # two evaluations may end at the same time
        kept = {_key(part): part for part in _read(folder)} | new
        write_json(folder / FILE, {"reliability": [asdict(part) for part in kept.values()]})
    return folder / FILE


def find_reliability(
    folders: Iterable[Path | None], classifier: Classifier, *, plain: bool = False
) -> Reliability | None:
    """Return how often answers of the classifier were right, if one of the folders, tried in order, has that.

    A certified decision has about the probability of a decision after many passes, so that the largest fixed number of
    passes, from 64 on, takes its place if the rule itself was not evaluated.
    """
    wanted = (
        "plain" if plain else classifier.combine,
        round(classifier.temperature, 6),
        digest(Compose() if plain else classifier.deformation),
    )
    for folder in folders:
        parts = [] if folder is None else _read(folder)
        stored = {_key(part)[3:]: part for part in parts if _key(part)[:3] == wanted}
        found = _of_rule(stored, FixedPasses(1) if plain else classifier.rule)
        if found is not None:
            return found
    return None


def _of_rule(stored: dict[tuple[Any, ...], Reliability], rule: Rule) -> Reliability | None:
    if not isinstance(rule, Certified):
        return stored.get((rule.limit, None))
    many = [part for part in stored.values() if part.passes is not None and part.passes >= MANY_PASSES]
    return stored.get((None, (rule.error, rule.limit))) or max(many, key=lambda part: part.passes or 0, default=None)


def _key(part: Reliability) -> tuple[Any, ...]:
    return part.rule, round(part.temperature, 6), part.deformation, part.passes, part.certified


def _read(folder: Path) -> list[Reliability]:
    """Return what is stored, nothing if the file is missing or damaged."""
    path = folder / FILE
    if not path.exists():
        return []
    with suppress(StorageError, KeyError, TypeError, ValueError):
        return [_from_json(payload) for payload in read_json(path, "")["reliability"]]
    return []


def _from_json(payload: dict[str, Any]) -> Reliability:
    """Return what `asdict` of a Reliability describes. Raises one of several errors if it is damaged."""
    lists: dict[str, Any] = {name: tuple(payload[name]) for name in ("images", "right", "bounds")}
    if payload.get("certified") is not None:
        error, limit = payload["certified"]
        lists["certified"] = (_number(error), _integer(limit))
    part = Reliability(**payload | lists)
    groups = list(zip(part.images, part.right, map(_number, part.bounds), strict=True))
    counted = all(0 <= _integer(right) <= _integer(images) and images >= 1 for images, right, _ in groups)
    increasing = all(low < high for low, high in itertools.pairwise(part.bounds))
    named = isinstance(part.rule, str) and isinstance(part.deformation, str)
    if not (groups and counted and increasing and named) or _number(part.temperature) <= 0:
        raise ValueError("the groups are damaged")
    if part.passes is not None:
        _integer(part.passes)
    return part


def _number(value: Any) -> float:
    if not math.isfinite(number := to_float(value)):
        raise TypeError("a finite number is expected")
    return number


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("an integer is expected")
    return value
