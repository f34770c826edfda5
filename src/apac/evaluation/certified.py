"""What the certified rule takes on a labeled set, and whether it decides as many more passes would."""

from __future__ import annotations

import csv
import io
import math
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from apac.classify.classifier import Classifier
from apac.classify.decision import Decision, rank
from apac.classify.rules.certified import Certified
from apac.classify.scores import Scores
from apac.errors import InputError
from apac.evaluation.fixed import check_classes, check_labels
from apac.progress import Progress, no_progress
from apac.runs.storage import read_tensors, write_tensors


@dataclass(frozen=True, eq=False)
class CertifiedEvaluation:
    """What the certified rule did on N images."""

    images: int
    seed: int
    rule: Certified
    wrong: float  # share of the images whose decision is not their label
    mean: float  # passes
    median: float
    percentile99: float
    uncertain: int  # images that stopped without being certified
    clipped: int  # certified images with a pass in which the clip was active
    failed: int  # images that the network gave NaN for
    seconds: float  # that deciding took
    decision: Decision

    @property
    def certain(self) -> Tensor:
        """(N,) which images are certified."""
        return torch.tensor([why == "certified" for why in self.decision.stopped])

    def to_json(self) -> dict[str, Any]:
        """All but the decision of each image."""
        form = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "decision"}
        return form | {"rule": {"kind": "Certified", **asdict(self.rule)}}


@dataclass(frozen=True)
class Difference:
    """A certified decision that the fixed number of passes decides otherwise, with both margins."""

    image: int
    certified: int
    fixed: int
    passes: int
    margin: float
    margin_error: float | None  # None where it is not known
    fixed_margin: float


@dataclass(frozen=True)
class Agreement:
    """The certified decisions beside those of a fixed number of passes with the same seed."""

    passes: int
    certified: int  # images
    differ: tuple[Difference, ...]
    differ_at_limit: tuple[int, ...]  # images that were not certified, and which the fixed passes decide otherwise
    wrong: float  # error of the fixed decision
    seconds: float  # that the fixed passes took

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def evaluate_certified(
    classifier: Classifier,
    images: Tensor,
    labels: Tensor,
    *,
    keep: Path | None = None,
    progress: Progress = no_progress,
) -> CertifiedEvaluation:
    """Decide normalized images (N, C, H, W) with labels (N,) by the classifier's rule, which is a Certified.

    With a file `keep` the decision is kept there, and taken from there if it is found.
    """
    if not isinstance(classifier.rule, Certified):
        raise InputError(f"the rule must be a Certified, got {classifier.rule!r}.")
    check_labels(images, labels)
    decision, seconds = _decide(classifier, images, keep, progress)
    check_classes(labels, decision.log_scores.shape[1])
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
        uncertain=len(_stopped(decision, "limit")),
        clipped=int((decision.clipped[certified] > 0).sum()),
        failed=len(_stopped(decision, "nan")),
        seconds=seconds,
        decision=decision,
    )


def _decide(classifier: Classifier, images: Tensor, keep: Path | None, progress: Progress) -> tuple[Decision, float]:
    """The decision and the seconds that it took."""
    if keep is not None and keep.exists():
        with suppress(InputError, KeyError, TypeError, ValueError):  # what is damaged is made anew
            tensors, notes = read_tensors(keep, "")
            stopped = tuple(notes["stopped"].split())
            return Decision(**tensors, stopped=stopped, combine=classifier.combine), float(notes["seconds"])
    began = time.monotonic()
    decision = classifier.decide(images, progress=progress)
    seconds = time.monotonic() - began
    if keep is not None:
        tensors = {f.name: getattr(decision, f.name) for f in fields(Decision) if f.name not in ("stopped", "combine")}
        write_tensors(keep, tensors, {"stopped": " ".join(decision.stopped), "seconds": str(seconds)})
    return decision, seconds


def compare(decision: Decision, scores: Scores, labels: Tensor, seconds: float) -> Agreement:
    """The certified decisions beside the scores of a fixed number of passes, which took so long."""
    ranking = scores.log_mean if decision.combine == "product" else scores.probability_mean
    fixed = rank(ranking)[:, 0]
    certified, open_ = _stopped(decision, "certified"), _stopped(decision, "limit")
    differ = []
    for i in certified:
        label, other = int(decision.labels[i]), int(fixed[i])
        error = float(decision.margin_errors[i])
        if label != other:
            differ.append(
                Difference(
                    image=i,
                    certified=label,
                    fixed=other,
                    passes=int(decision.passes[i]),
                    margin=float(decision.margins[i]),
                    margin_error=error if math.isfinite(error) else None,
                    fixed_margin=float(ranking[i, other] - ranking[i, label]),
                )
            )
    return Agreement(
        passes=scores.passes,
        certified=len(certified),
        differ=tuple(differ),
        differ_at_limit=tuple(i for i in open_ if decision.labels[i] != fixed[i]),
        wrong=int((fixed != labels).sum()) / len(labels),
        seconds=seconds,
    )


def to_csv(decision: Decision, labels: Tensor) -> str:
    """The decision of each image, a line each, beside its true label."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["image", "truth", "label", "runner_up", "margin", "margin_error", "passes", "clipped", "stopped"])
    tensors = (
        labels,
        decision.labels,
        decision.runners_up,
        decision.margins,
        decision.margin_errors,
        decision.passes,
        decision.clipped,
    )
    rows = zip(*(tensor.tolist() for tensor in tensors), decision.stopped, strict=True)
    table.writerows([image, *row] for image, row in enumerate(rows))
    return text.getvalue()


def _stopped(decision: Decision, why: str) -> list[int]:
    """The images that stopped for this reason."""
    return [i for i, reason in enumerate(decision.stopped) if reason == why]
