"""Errors and probabilities as functions of the number of passes M, by product and by sum, and what changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from apac.classify.classifier import Classifier
from apac.classify.combine import COMBINATIONS, Combine
from apac.classify.rules.exhaustive import Exhaustive
from apac.classify.rules.fixed import FixedPasses
from apac.classify.scores import Scores, logarithms, rank
from apac.errors import InputError
from apac.evaluation.intervals import mcnemar
from apac.evaluation.labels import validate_classes, validate_labels
from apac.evaluation.measures import CalibratedScores, Measures, calibrate, measure
from apac.evaluation.records import to_csv
from apac.evaluation.score_cache import ScoreCache
from apac.progress import Progress, no_progress
from apac.validation import validate_path


@dataclass(frozen=True)
class Row:
    """The errors after M passes, as fractions of the images."""

    passes: int
    product: float  # the paper's rule
    sum: float  # sum of softmaxes
    top2: float  # by the combination of the classifier; the label is not among the top 2 classes


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The errors of APAC and of the plain prediction on labeled images. Indices are positions in the set."""

    images: int
    seed: int
    plain: float  # error of the plain prediction
    plain_top2: float
    rows: tuple[Row, ...]  # by increasing M; empty if only the plain prediction was evaluated
    corrected: tuple[int, ...]  # wrong in the plain prediction, right by APAC with the largest M
    corrupted: tuple[int, ...]  # right in the plain prediction, wrong by APAC
    wrong: tuple[int, ...]  # wrong by APAC with the largest M, or in the plain prediction if there are no rows
    mcnemar: float  # p-value of the exact McNemar test on the corrected and corrupted images
    scores: Scores | None = field(repr=False)  # after the largest M
    seconds: float  # to compute the passes, including cached ones
    plain_labels: Tensor = field(repr=False)  # (N,) plain predictions
    labels: Tensor = field(
        repr=False
    )  # (N,) decisions of APAC with the largest M, or the plain predictions if there are no rows
    measures: tuple[Measures, ...] = field(default=(), repr=False)  # plain, then product and sum for each M
    held_out: int = 0  # images on which the temperatures were fitted; 0 if they are cross-fitted in fifths
    scored: tuple[CalibratedScores, ...] = field(default=(), repr=False)  # what `measures` were computed from
    combine: Combine = "product"  # of the classifier: by which `labels` are decided

    def measures_of(self, rule: str, passes: int | None = None) -> Measures:
        """Return the measures of "plain", or of "product" or "sum" after M passes, by default the largest M."""
        found = [part for part in self.measures if part.rule == rule and passes in (None, part.passes)]
        if not found:
            evaluated = ", ".join(f"{part.rule} with {part.passes:g}" for part in self.measures)
            asked = f"{rule!r}" if passes is None else f"{rule!r} with {passes} passes"
            raise InputError(f"{asked} was not evaluated; choose among {evaluated}.")
        return found[-1]

    def to_json(self) -> dict[str, Any]:
        """Return all fields but the tensors, ready for `json.dumps`."""
        omitted = ("scores", "rows", "plain_labels", "labels", "measures", "scored")
        payload = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in omitted}
        measures = [part.to_json() for part in self.measures]
        return payload | {"rows": [asdict(row) for row in self.rows], "measures": measures}

    def to_csv(self) -> str:
        """Return one line for the plain prediction and one for each M; a column ends in _se for its standard error."""
        measured = _columns(self.measures_of("plain"), self.measures_of("plain"))
        columns = ["rule", "passes", "product_error", "sum_error", "top2_error", *measured]
        rows: list[Sequence[object]] = [["plain", 1, self.plain, self.plain, self.plain_top2, *measured.values()]]
        for row in self.rows:
            measured = _columns(*(self.measures_of(rule, row.passes) for rule in ("product", "sum")))
            rows.append(["apac", row.passes, row.product, row.sum, row.top2, *measured.values()])
        return to_csv(columns, rows)


def evaluate(
    classifier: Classifier,
    images: Tensor,
    labels: Tensor | Sequence[int],
    passes: Sequence[int] = (1, 4, 16, 64, 256),
    *,
    held_out: tuple[Tensor, Tensor | Sequence[int]] | None = None,
    cache: Path | None = None,
    progress: Progress = no_progress,
) -> Evaluation:
    """Evaluate a classifier on images (N, C, H, W) with labels (N,), for increasing numbers of passes M.

    Every image gets the same passes, up to the largest M. With the rule `Exhaustive`, M is the number of values of the
    deformation instead of `passes`. Probabilities are measured at temperature 1, whatever that of the classifier, and
    after a temperature for each rule and M, which is fitted on `held_out` (images, labels) that the network was not
    trained on or, without those, by cross-fitting: for each fifth of the images on the others. If `cache` is a path,
    the sums of the passes are stored in that folder and reused by later calls.

    >>> import apac, torch
    >>> classifier = apac.Classifier(lambda images: images.flatten(1), apac.Compose())
    >>> evaluation = apac.evaluate(classifier, torch.eye(4).view(4, 1, 2, 2), torch.tensor([0, 1, 2, 0]), passes=(1, 4))
    >>> evaluation.plain, evaluation.rows[-1].product, evaluation.wrong
    (0.25, 0.25, (3,))
    >>> round(evaluation.measures_of("product", 4).uncalibrated.nll.value, 2)
    0.99
    """
    labels = validate_labels(images, labels)
    if not isinstance(passes, Iterable):
        raise InputError(f"passes must be a sequence of integers, such as (1, 4, 16), got {passes!r}.")
    folder = None if cache is None else validate_path("cache", cache)
    numbers = sorted({FixedPasses(number).passes for number in passes})
    held_out = _validated(held_out)
    plain = classifier.plain(images)
    if isinstance(classifier.rule, Exhaustive):
        _, channels, height, width = images.shape
        numbers = [classifier.rule.of(classifier.deformation, (channels, height, width)).passes]
    validate_classes(labels, plain.shape[1])
    held_out_scores = (
        None if held_out is None else _HeldOut(classifier, *held_out, max(numbers, default=0), folder, progress)
    )
    score_cache = ScoreCache(classifier, images, max(numbers, default=0), folder)
    rules = [calibrate("plain", 1, plain, labels, held_out_scores.plain if held_out_scores else None)]
    rows = []
    for number in numbers:
        scores = score_cache.get(number, progress=progress)
        rows.append(_row(scores, labels, classifier.combine))
        for rule in COMBINATIONS:
            fitted_on = held_out_scores.after(number, rule) if held_out_scores else None
            rules.append(
                calibrate(
                    rule,
                    number,
                    logarithms(rule, scores.log_mean, scores.probability_mean),
                    labels,
                    fitted_on,
                )
            )
    plain_labels = rank(plain)[:, 0]
    decided = plain_labels if score_cache.scores is None else rank(score_cache.scores.mean(classifier.combine))[:, 0]
    before, after = plain_labels == labels, decided == labels
    corrected, corrupted = _indices(after & ~before), _indices(before & ~after)
    return Evaluation(
        images=len(images),
        seed=classifier.seed,
        plain=_error(rank(plain)[:, :1], labels),
        plain_top2=_error(rank(plain)[:, :2], labels),
        rows=tuple(rows),
        corrected=corrected,
        corrupted=corrupted,
        wrong=_indices(~after),
        mcnemar=mcnemar(len(corrected), len(corrupted)),
        scores=score_cache.scores,
        seconds=score_cache.seconds,
        plain_labels=plain_labels,
        labels=decided,
        measures=measure(rules, labels, seed=classifier.seed),
        held_out=0 if held_out is None else len(held_out[0]),
        scored=tuple(rules),
        combine=classifier.combine,
    )


class _HeldOut:
    """The scores of held-out images, with their labels."""

    def __init__(
        self,
        classifier: Classifier,
        images: Tensor,
        labels: Tensor,
        max_passes: int,
        folder: Path | None,
        progress: Progress,
    ) -> None:
        self.labels = labels
        self.plain = (classifier.plain(images), labels)
        validate_classes(labels, self.plain[0].shape[1])
        self._cache = ScoreCache(classifier, images, max_passes, folder)
        self._progress: Progress = lambda task, done, total, note="": progress(
            f"{task} held-out images", done, total, note
        )

    def after(self, passes: int, rule: Combine) -> tuple[Tensor, Tensor]:
        """Return the scores after a number of passes, which must not decrease between calls, and the labels."""
        scores = self._cache.get(passes, progress=self._progress)
        return logarithms(rule, scores.log_mean, scores.probability_mean), self.labels


def _validated(held_out: tuple[Tensor, Tensor | Sequence[int]] | None) -> tuple[Tensor, Tensor] | None:
    if held_out is None:
        return None
    if not isinstance(held_out, tuple) or len(held_out) != 2:
        raise InputError(f"held_out must be a pair (images, labels), got {type(held_out).__name__}.")
    try:
        return held_out[0], validate_labels(*held_out)
    except InputError as error:
        raise InputError(f"in held_out, {error}") from error


def _columns(by_product: Measures, by_sum: Measures) -> dict[str, float]:
    both = (("product", by_product), ("sum", by_sum))
    return {f"{rule}_{name}": value for rule, part in both for name, value in part.columns().items()}


def _row(scores: Scores, labels: Tensor, combine: Combine) -> Row:
    by_product, by_sum = rank(scores.mean("product")), rank(scores.mean("sum"))
    return Row(
        scores.passes,
        product=_error(by_product[:, :1], labels),
        sum=_error(by_sum[:, :1], labels),
        top2=_error(rank(scores.mean(combine))[:, :2], labels),
    )


def _error(predictions: Tensor, labels: Tensor) -> float:
    """Return the fraction of images whose label is not among their predictions (N, k)."""
    return int((predictions != labels[:, None]).all(dim=1).sum()) / len(labels)


def _indices(mask: Tensor) -> tuple[int, ...]:
    return tuple(mask.nonzero()[:, 0].tolist())
