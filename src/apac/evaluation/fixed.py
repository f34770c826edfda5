"""Error as a function of the number of passes M, by product and by sum, and the changed predictions."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from apac.classify.classifier import Classifier
from apac.classify.rules.fixed import FixedPasses
from apac.classify.scores import Scores, rank
from apac.errors import InputError
from apac.evaluation.labels import validate_classes, validate_labels
from apac.evaluation.score_cache import ScoreCache
from apac.progress import Progress, no_progress
from apac.validation import validate_path


@dataclass(frozen=True)
class Row:
    """The errors after M passes, as fractions of the images."""

    passes: int
    product: float  # the paper's rule
    sum: float  # sum of softmaxes
    top2: float  # by product; the label is not among the top 2 classes


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
    scores: Scores | None  # after the largest M
    seconds: float  # to compute the passes, including cached ones
    plain_labels: Tensor  # (N,) plain predictions
    labels: Tensor  # (N,) decisions of APAC with the largest M, or the plain predictions if there are no rows

    def to_json(self) -> dict[str, Any]:
        """Return all fields but the rows of tensors, ready for `json.dumps`."""
        omitted = ("scores", "rows", "plain_labels", "labels")
        payload = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in omitted}
        return payload | {"rows": [asdict(row) for row in self.rows]}

    def to_csv(self) -> str:
        """Return one line for the plain prediction and one for each M."""
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["rule", "passes", "product_error", "sum_error", "top2_error"])
        table.writerow(["plain", 1, self.plain, self.plain, self.plain_top2])
        table.writerows(["apac", row.passes, row.product, row.sum, row.top2] for row in self.rows)
        return text.getvalue()


def evaluate(
    classifier: Classifier,
    images: Tensor,
    labels: Tensor | Sequence[int],
    passes: Sequence[int] = (1, 4, 16, 64, 256),
    *,
    cache: Path | None = None,
    progress: Progress = no_progress,
) -> Evaluation:
    """Evaluate the plain prediction and APAC with each number of `passes` on images (N, C, H, W) with labels (N,).

    The images are preprocessed as for `classifier.decide`. The classifier's rule is not used: passes are summed
    once, up to the largest M. If `cache` is a path, the sums are stored in that folder and reused by later calls.

    >>> import apac, torch
    >>> classifier = apac.Classifier(lambda images: images.flatten(1), apac.Compose())
    >>> evaluation = apac.evaluate(classifier, torch.eye(4).view(4, 1, 2, 2), torch.tensor([0, 1, 2, 0]), passes=(1, 4))
    >>> evaluation.plain, evaluation.rows[-1].product, evaluation.wrong
    (0.25, 0.25, (3,))
    """
    labels = validate_labels(images, labels)
    if not isinstance(passes, Iterable):
        raise InputError(f"passes must be a sequence of integers, such as (1, 4, 16), got {passes!r}.")
    folder = None if cache is None else validate_path("cache", cache)
    numbers = sorted({FixedPasses(number).passes for number in passes})
    plain = classifier.plain(images)
    validate_classes(labels, plain.shape[1])
    score_cache = ScoreCache(classifier, images, max(numbers, default=0), folder)
    rows = tuple(_row(score_cache.get(number, progress=progress), labels) for number in numbers)
    scores = score_cache.scores
    plain_labels = rank(plain)[:, 0]
    decided = plain_labels if scores is None else rank(scores.log_mean)[:, 0]
    before, after = plain_labels == labels, decided == labels
    corrected, corrupted = _indices(after & ~before), _indices(before & ~after)
    return Evaluation(
        images=len(images),
        seed=classifier.seed,
        plain=_error(rank(plain)[:, :1], labels),
        plain_top2=_error(rank(plain)[:, :2], labels),
        rows=rows,
        corrected=corrected,
        corrupted=corrupted,
        wrong=_indices(~after),
        mcnemar=mcnemar(len(corrected), len(corrupted)),
        scores=scores,
        seconds=score_cache.seconds,
        plain_labels=plain_labels,
        labels=decided,
    )


def mcnemar(corrected: int, corrupted: int) -> float:
    """Return the p-value of the exact two-sided McNemar test: a binomial test with probability 1/2."""
    changed = corrected + corrupted
    tail = sum(math.comb(changed, k) for k in range(min(corrected, corrupted) + 1))
    return min(1.0, 2 * tail / (1 << changed))


def _row(scores: Scores, labels: Tensor) -> Row:
    by_product, by_sum = rank(scores.mean("product")), rank(scores.mean("sum"))
    return Row(
        scores.passes,
        product=_error(by_product[:, :1], labels),
        sum=_error(by_sum[:, :1], labels),
        top2=_error(by_product[:, :2], labels),
    )


def _error(predictions: Tensor, labels: Tensor) -> float:
    """Return the fraction of images whose label is not among their predictions (N, k)."""
    return int((predictions != labels[:, None]).all(dim=1).sum()) / len(labels)


def _indices(mask: Tensor) -> tuple[int, ...]:
    return tuple(mask.nonzero()[:, 0].tolist())
