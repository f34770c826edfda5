"""The results of apac evaluate: the tables and sentences that it prints, and the files that it writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apac.cli.errors import print_error
from apac.cli.terminal import print_table
from apac.errors import InputError

if TYPE_CHECKING:  # imports torch, which is slow
    from torch import Tensor

    from apac.evaluation.by_class import Predictions
    from apac.evaluation.certified import CertifiedEvaluation
    from apac.evaluation.certified_measures import CertifiedMeasures
    from apac.evaluation.fixed import Evaluation

Figures = Mapping[str, Callable[[], bytes]]


def print_fixed(result: Evaluation, predictions: Predictions) -> None:
    from apac.reporting import measures, tables

    print_table(tables.error_against_m(result))
    if result.rows:
        print_table(measures.likelihood_against_m(result))
    print_table(measures.side_by_side(measures.largest(result)))
    print_table(tables.by_class(predictions))
    if result.rows:
        print(tables.changes(result))
        print(measures.likelihood_sentence(result.measures_of("plain"), result.measures_of(result.combine)))
    print(measures.temperature_sentence(result.held_out))


def print_certified(
    result: CertifiedEvaluation, measured: CertifiedMeasures, plain: float, predictions: Predictions
) -> None:
    from apac.reporting import measures, tables

    print_table(tables.certified(result, plain))
    if measured.measures:
        print_table(measures.side_by_side(measured.measures))
    print_table(tables.by_class(predictions))
    print(measures.settled_sentence(measured))
    if measured.measures:
        apac = measured.measures[1]
        print(tables.describe_changes(apac.corrected, apac.corrupted, apac.mcnemar, len(predictions.truth)))
        print(measures.likelihood_sentence(*measured.measures))
    print(measures.temperature_sentence(measured.held_out))


def write_fixed(folder: Path, payload: Mapping[str, Any], result: Evaluation, predictions: Predictions) -> None:
    from apac.reporting.measures import largest

    contents = {
        "evaluation.json": json.dumps(payload, indent=2) + "\n",
        "evaluation.csv": result.to_csv(),
        "classes.csv": predictions.classes_csv(),
        "confusion.csv": predictions.confusion_csv(),
        "misclassified.csv": predictions.misclassified_csv(),
    }

    def reliability() -> bytes:
        from apac.reporting.figures.probabilities import reliability

        return reliability(largest(result))

    def risk() -> bytes:
        from apac.reporting.figures.probabilities import risk_coverage

        return risk_coverage(largest(result))

    passes = result.rows[-1].passes if result.rows else None
    figures: Figures = {
        "confusion.png": lambda: _confusion(predictions, passes),
        "reliability.png": reliability,
        "risk.png": risk,
    }
    _write(folder, contents, figures)


def write_certified(folder: Path, contents: Mapping[str, str], result: CertifiedEvaluation, labels: Tensor) -> None:
    def passes() -> bytes:
        from apac.reporting.figures.curves import passes_against_margin

        return passes_against_margin(result.decision, labels)

    _write(folder, contents, {"passes.png": passes})


def _confusion(predictions: Predictions, passes: int | None) -> bytes:
    from apac.reporting.figures.confusion import confusion_matrix
    from apac.reporting.tables import percent

    wrong = int((predictions.apac != predictions.truth).sum())
    decided = f"APAC, {passes:,} passes" if passes else "plain"
    title = f"{decided}: {percent(wrong / len(predictions.truth))} error on {len(predictions.truth):,} images"
    return confusion_matrix(predictions.confusion("apac"), predictions.classes, title)


def _write(folder: Path, contents: Mapping[str, str], figures: Figures) -> None:
    """Write text files and, if the package that draws them is installed, figures."""
    from apac.runs.storage import write_bytes

    written = [folder / name for name in contents]
    for name, text in contents.items():
        write_bytes(folder / name, text.encode(errors="surrogateescape"))  # a file name may not be UTF-8
    for name, draw in figures.items():
        try:
            picture = draw()
        except InputError as missing:
            print_error(f"{name} is not drawn: {missing}")
            continue
        written.append(folder / name)
        write_bytes(written[-1], picture)
    print(f"wrote {', '.join(map(str, written))}")
