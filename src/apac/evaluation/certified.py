"""Evaluation of the certified rule on labeled images, and comparison with a large fixed number of passes."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from apac.classify.classifier import Classifier
from apac.classify.decision import TENSORS, Decision
from apac.classify.rules.certified import Certified
from apac.classify.scores import Scores, rank
from apac.distributed.ranks.group import Group
from apac.errors import InputError
from apac.evaluation.labels import validate_classes, validate_labels
from apac.evaluation.records import to_csv
from apac.evaluation.score_cache import check_shapes
from apac.progress import Progress, no_progress
from apac.runs.storage import read_tensors, write_tensors

# The tensors of a decision: those with a number for each class, and those of integers
BY_CLASS = ("log_scores", "mean_probabilities", "standard_errors")
INTEGERS = ("labels", "runners_up", "passes", "clipped")
REASONS = {"certified", "limit", "nan"}  # why an image got no more passes


@dataclass(frozen=True, eq=False)
class CertifiedEvaluation:
    """The results of the certified rule on N images."""

    images: int
    seed: int
    rule: Certified
    wrong: float  # fraction of images whose decision is not their label
    mean: float  # of the passes
    median: float
    percentile99: float
    unsettled: int  # images that reached the limit without being certified
    clipped: int  # certified images with a pass in which the clip was active
    failed: int  # images for which the network returned NaN
    seconds: float  # to compute the decisions
    decision: Decision

    @property
    def settled(self) -> Tensor:
        """The mask of the certified images, (N,)."""
        return torch.tensor([reason == "certified" for reason in self.decision.stopped])

    def to_json(self) -> dict[str, Any]:
        """Return all fields but the decisions, ready for `json.dumps`."""
        payload = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "decision"}
        return payload | {"rule": {"kind": "Certified", **asdict(self.rule)}}


@dataclass(frozen=True)
class Difference:
    """An image for which the certified decision differs from the decision after a fixed number of passes."""

    image: int
    certified: int
    fixed: int
    passes: int
    margin: float
    margin_error: float | None  # None if unknown
    fixed_margin: float


@dataclass(frozen=True)
class Agreement:
    """Comparison of certified decisions with those after a fixed number of passes with the same seed."""

    passes: int
    certified: int  # images
    differ: tuple[Difference, ...]
    differ_at_limit: tuple[int, ...]  # images that are not certified and differ
    wrong: float  # error of the fixed passes
    seconds: float  # to compute the fixed passes

    def to_json(self) -> dict[str, Any]:
        """Return all fields, ready for `json.dumps`."""
        return asdict(self)


def evaluate_certified(
    classifier: Classifier,
    images: Tensor,
    labels: Tensor,
    *,
    cache: Path | None = None,
    progress: Progress = no_progress,
) -> CertifiedEvaluation:
    """Evaluate the classifier's rule, a Certified, on images (N, C, H, W) with labels (N,).

    If `cache` is a path, decisions are stored in that file and reused by later calls. Several ranks share the passes;
    the decisions are those of one process.
    """
    if not isinstance(classifier.rule, Certified):
        raise InputError(f"the rule of the classifier must be a Certified, got {classifier.rule!r}.")
    labels = validate_labels(images, labels)
    decision, seconds = _decide(classifier, images, cache, progress)
    validate_classes(labels, decision.log_scores.shape[1])
    passes = decision.passes.double()
    certified = _stopped(decision, "certified")
    return CertifiedEvaluation(
        images=len(images),
        seed=classifier.seed,
        rule=classifier.rule,
        wrong=int((decision.labels != labels).sum()) / len(labels),
        mean=float(passes.mean()),
        median=float(passes.quantile(0.5)),
        percentile99=float(passes.quantile(0.99)),
        unsettled=len(_stopped(decision, "limit")),
        clipped=int((decision.clipped[certified] > 0).sum()),
        failed=len(_stopped(decision, "nan")),
        seconds=seconds,
        decision=decision,
    )


def _decide(classifier: Classifier, images: Tensor, cache: Path | None, progress: Progress) -> tuple[Decision, float]:
    """Return the decisions and their computing time in seconds, from the cache if possible."""
    group = Group.current()
    stored = group.on_first(lambda: _stored(cache, classifier, images))
    if stored is not None:
        return stored
    started = time.monotonic()
    decision = classifier.decide(images, progress=progress, across_ranks=True)
    seconds = time.monotonic() - started
    return decision, group.on_first(lambda: _store(cache, decision, seconds))


def _stored(cache: Path | None, classifier: Classifier, images: Tensor) -> tuple[Decision, float] | None:
    """Return the decision of a file; None if there is none, or if it is damaged."""
    if cache is not None and cache.exists():
        with suppress(InputError, OSError, LookupError, TypeError, ValueError):
            return _load(cache, classifier, images)
    return None


def _store(cache: Path | None, decision: Decision, seconds: float) -> float:
    """Write the decision to a file, if there is one, and return the seconds."""
    if cache is not None:
        metadata = {"stopped": " ".join(decision.stopped), "seconds": str(seconds)}
        write_tensors(cache, {name: getattr(decision, name) for name in TENSORS}, metadata)
    return seconds


def _load(cache: Path, classifier: Classifier, images: Tensor) -> tuple[Decision, float]:
    """Return the decision of a file. Raises one of several errors if it is not one of these images."""
    tensors: dict[str, Any]
    tensors, metadata = read_tensors(cache, "", partial(check_shapes, classifier, images))
    stopped = tuple(metadata["stopped"].split())
    classes = tensors["log_scores"].shape[-1]
    for name, tensor in tensors.items():
        shape = (len(images), classes) if name in BY_CLASS else (len(images),)
        dtype = torch.int64 if name in INTEGERS else torch.float64
        in_range = name not in ("labels", "runners_up") or bool(((tensor >= -1) & (tensor < classes)).all())
        if tensor.shape != shape or tensor.dtype != dtype or not in_range:
            raise ValueError("the decision is damaged")
    if len(stopped) != len(images) or not set(stopped) <= REASONS:
        raise ValueError("the decision is damaged")
    decision = Decision(**tensors, stopped=stopped, combine=classifier.combine, temperature=classifier.temperature)
    return decision, float(metadata["seconds"])


def compare(decision: Decision, scores: Scores, labels: Tensor, seconds: float) -> Agreement:
    """Compare certified decisions with the scores of a fixed number of passes, which took `seconds`."""
    means = scores.mean(decision.combine)
    fixed = rank(means)[:, 0]
    certified, at_limit = _stopped(decision, "certified"), _stopped(decision, "limit")
    return Agreement(
        passes=scores.passes,
        certified=len(certified),
        differ=tuple(_difference(i, decision, means) for i in certified if decision.labels[i] != fixed[i]),
        differ_at_limit=tuple(i for i in at_limit if decision.labels[i] != fixed[i]),
        wrong=int((fixed != labels).sum()) / len(labels),
        seconds=seconds,
    )


def decisions_csv(decision: Decision, labels: Tensor, files: Sequence[str] = ()) -> str:
    """Return one line per image: its label, its decision, whether more passes would not change it, and its file."""
    columns = ("image", "truth", "label", "runner_up", "margin", "margin_error", "passes", "clipped", "probability")
    tensors = (
        labels,
        decision.labels,
        decision.runners_up,
        decision.margins,
        decision.margin_errors,
        decision.passes,
        decision.clipped,
        decision.probabilities.amax(dim=1),
    )
    settled = [reason == "certified" for reason in decision.stopped]
    names = files or [""] * len(labels)
    rows = zip(*(tensor.tolist() for tensor in tensors), decision.stopped, settled, names, strict=True)
    return to_csv([*columns, "stopped", "settled", "file"], ([image, *row] for image, row in enumerate(rows)))


def _difference(image: int, decision: Decision, means: Tensor) -> Difference:
    label, fixed = int(decision.labels[image]), int(rank(means[image : image + 1])[0, 0])
    margin_error = float(decision.margin_errors[image])
    return Difference(
        image=image,
        certified=label,
        fixed=fixed,
        passes=int(decision.passes[image]),
        margin=float(decision.margins[image]),
        margin_error=margin_error if math.isfinite(margin_error) else None,
        fixed_margin=float(means[image, fixed] - means[image, label]),
    )


def _stopped(decision: Decision, reason: str) -> list[int]:
    """Return the indices of the images that stopped for this reason."""
    return [i for i, stopped in enumerate(decision.stopped) if stopped == reason]
