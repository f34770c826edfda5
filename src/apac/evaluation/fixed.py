"""Error against M, by product and by sum, top-2, and which images changed. One network evaluation serves all."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from apac.classify.classifier import Classifier
from apac.classify.decision import rank
from apac.classify.rules.base import FixedPasses
from apac.classify.scores import Scores
from apac.errors import InputError
from apac.evaluation.score_cache import ScoreCache
from apac.progress import Progress, no_progress


@dataclass(frozen=True)
class Row:
    """The errors after M passes, as shares of the images."""

    passes: int
    product: float  # the paper's rule
    sum: float  # summation of softmaxes instead
    top2: float  # by product: the truth is not among the two best


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What APAC and the plain prediction do on a labeled set. Indices count within the set."""

    images: int
    seed: int
    plain: float  # error of the plain prediction
    plain_top2: float
    rows: tuple[Row, ...]  # by growing M; none if only the plain prediction was asked for
    corrected: tuple[int, ...]  # wrong by the plain prediction, right by APAC with the largest M
    corrupted: tuple[int, ...]  # right by the plain prediction, wrong by APAC
    wrong: tuple[int, ...]  # wrong by APAC with the largest M, or by the plain prediction where there is no row
    mcnemar: float  # p-value: the chance of so uneven a split of the changed images if neither rule were better
    scores: Scores | None  # after the largest M
    seconds: float  # that the passes took, whenever they were made

    def to_json(self) -> dict[str, Any]:
        """All but the scores."""
        form = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("scores", "rows")}
        return form | {"rows": [asdict(row) for row in self.rows]}

    def to_csv(self) -> str:
        """One line for the plain prediction and one for each M."""
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["rule", "passes", "product_error", "sum_error", "top2_error"])
        table.writerow(["plain", 1, self.plain, self.plain, self.plain_top2])
        table.writerows(["apac", row.passes, row.product, row.sum, row.top2] for row in self.rows)
        return text.getvalue()


def evaluate(
    classifier: Classifier,
    images: Tensor,
    labels: Tensor,
    passes: Sequence[int] = (1, 4, 16, 64, 256),
    *,
    keep: Path | None = None,
    progress: Progress = no_progress,
) -> Evaluation:
    """Decide normalized images (N, C, H, W) with labels (N,) by the plain prediction and by APAC at each of `passes`.

    The classifier's own rule is not used: its passes are summed once, up to the largest M. With a folder `keep` the
    sums are kept there, and passes that are found there are not made again.
    """
    check_labels(images, labels)
    marks = sorted({FixedPasses(m).passes for m in passes})
    plain = classifier.plain(images)
    classes = plain.shape[1]
    check_classes(labels, classes)
    scores: Scores | None = None
    rows = []
    cache = ScoreCache(classifier, images, max(marks, default=0), keep)
    for mark in marks:
        scores = cache.get(mark, progress=progress)
        by_product = rank(scores.log_mean)
        rows.append(
            Row(
                mark,
                product=_error(by_product[:, :1], labels),
                sum=_error(rank(scores.probability_mean)[:, :1], labels),
                top2=_error(by_product[:, :2], labels),
            )
        )
    before = rank(plain)[:, 0] == labels
    after = before if scores is None else rank(scores.log_mean)[:, 0] == labels
    corrected, corrupted = _places(after & ~before), _places(before & ~after)
    return Evaluation(
        images=len(images),
        seed=classifier.seed,
        plain=_error(rank(plain)[:, :1], labels),
        plain_top2=_error(rank(plain)[:, :2], labels),
        rows=tuple(rows),
        corrected=corrected,
        corrupted=corrupted,
        wrong=_places(~after),
        mcnemar=mcnemar(len(corrected), len(corrupted)),
        scores=scores,
        seconds=cache.seconds,
    )


def mcnemar(corrected: int, corrupted: int) -> float:
    """The exact two-sided McNemar test: a fair coin for each image whose correctness changed."""
    changed = corrected + corrupted
    tail = sum(math.comb(changed, k) for k in range(min(corrected, corrupted) + 1))
    return min(1.0, 2 * tail / (1 << changed))


def check_classes(labels: Tensor, classes: int) -> None:
    if not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise InputError(
            f"labels must be between 0 and {classes - 1}, the network's {classes} classes, "
            f"got {int(labels.min())} to {int(labels.max())}."
        )


def check_labels(images: Tensor, labels: Tensor) -> None:
    if labels.ndim != 1 or len(labels) != len(images) or labels.is_floating_point():
        raise InputError(
            f"{len(images)} images need {len(images)} whole-number labels, got {labels.dtype} {tuple(labels.shape)}."
        )
    if not len(images):
        raise InputError("there are no images to evaluate.")


def _error(guesses: Tensor, labels: Tensor) -> float:
    """The share of images with the label among none of the guesses (N, k)."""
    return int((guesses != labels[:, None]).all(dim=1).sum()) / len(labels)


def _places(mask: Tensor) -> tuple[int, ...]:
    return tuple(mask.nonzero()[:, 0].tolist())
