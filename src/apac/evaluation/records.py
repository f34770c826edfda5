"""Decisions of image files as records: JSON values, lines of a CSV file, rows of a table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imports torch, which is slow
    from apac.evaluation.reliability import Reliability
    from apac.runs.classified import ClassifiedImages

# The columns of a table, before one column with the probability of each class.
COLUMNS = (
    *("image", "label", "runner_up", "margin", "margin_error", "passes", "stopped", "probability", "settled"),
    *("bin_accuracy", "bin_images", "plain", "combine", "strength", "temperature"),
)

# Whether more passes would not change a decision that stopped for this reason; None for a fixed number of passes.
SETTLED = {"certified": True, "exhaustive": True, "limit": False}


def decision_records(
    classified: ClassifiedImages, *, strength: float = 1.0, reliability: Reliability | None = None
) -> list[dict[str, Any]]:
    """Return the decisions of image files as JSON values; `reliability` is how often such answers were right."""
    decision, classes = classified.decision, classified.classes
    if not classified.paths:
        return []
    best = decision.ranking.argmax(dim=1, keepdim=True)  # (N, 1)
    # Lists, because reading a tensor element by element is slow.
    best_score, best_error = (
        values.gather(1, best)[:, 0].tolist() for values in (decision.log_scores, decision.standard_errors)
    )
    labels, runners_up, passes, clipped, margins, margin_errors, positions, probabilities, log_scores = (
        values.tolist()
        for values in (
            *(decision.labels, decision.runners_up, decision.passes, decision.clipped),
            *(decision.margins, decision.margin_errors, best[:, 0], decision.probabilities, decision.log_scores),
        )
    )
    return [
        {
            "image": str(path),
            "label": _name(classes, labels[i]),
            "runner_up": _name(classes, runners_up[i]),
            **_probability(probabilities[i][positions[i]] if labels[i] >= 0 else None, reliability),
            "stopped": decision.stopped[i],
            "settled": SETTLED.get(decision.stopped[i]),
            "passes": passes[i],
            "clipped": clipped[i],
            "combine": decision.combine,
            "plain": classified.plain,
            "strength": strength,
            "temperature": decision.temperature,
            "margin": _number(margins[i]),
            "margin_error": _number(margin_errors[i]),
            "mean_log_probability": _number(best_score[i]),
            "standard_error": _number(best_error[i]),
            "probabilities": dict(zip(classes, map(_number, probabilities[i]), strict=True)),
            "log_scores": dict(zip(classes, map(_number, log_scores[i]), strict=True)),
            "notes": list(notes),
        }
        for i, (path, notes) in enumerate(zip(classified.paths, classified.notes, strict=True))
    ]


def _probability(probability: float | None, reliability: Reliability | None) -> dict[str, Any]:
    """Return the probability of an answer, and the test images whose answers had one like it."""
    such = None if probability is None or reliability is None else reliability.bin_of(probability)
    return {
        "probability": probability,
        "bin_accuracy": such and such.accuracy,
        "bin_images": such and such.images,
        "bin_probability": such and [such.low, such.high],
    }


def records_to_csv(records: Iterable[dict[str, Any]], classes: Sequence[str]) -> str:
    """Return decision records as CSV, one line per image, with the probability of each class in the last columns."""
    rows = ([*(record[name] for name in COLUMNS), *class_probabilities(record, classes)] for record in records)
    return to_csv([*COLUMNS, *class_columns(classes)], rows)


def class_columns(classes: Sequence[str]) -> list[str]:
    """Return the names of the columns with the probability of each class."""
    return [f"probability_{name}" for name in classes]


def class_probabilities(record: dict[str, Any], classes: Sequence[str]) -> list[float | None]:
    """Return the probability of each class, in their order."""
    return [record["probabilities"][name] for name in classes]


def to_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as CSV; None is an empty cell."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows(rows)
    return text.getvalue()


def _name(classes: Sequence[str], number: int) -> str | None:
    return classes[number] if number >= 0 else None


def _number(value: float) -> float | None:
    """Return a finite number, or None, because JSON has neither NaN nor infinity."""
    return value if math.isfinite(value) else None
