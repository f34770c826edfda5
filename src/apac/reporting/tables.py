"""Results as tables: plain data that the command line prints and the report renders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from apac.classify.scores import rank
from apac.evaluation.by_class import Predictions
from apac.evaluation.certified import Agreement, CertifiedEvaluation
from apac.evaluation.fixed import Evaluation

MAX_CLASSES = 20  # rows of a table of classes
SIGNIFICANCE_LEVEL = 0.05  # p-value of differences that may be chance


@dataclass(frozen=True)
class Table:
    """Cells of text with a title and column names."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    highlight_last: bool = True  # in HTML


def error_against_m(evaluation: Evaluation, trained: str = "") -> Table:
    """Return the errors of the plain prediction and of APAC for each M; `trained` is added to the title."""
    plain = ("plain", "1", percent(evaluation.plain), percent(evaluation.plain), percent(evaluation.plain_top2))
    rows = tuple(
        ("APAC", f"{row.passes:,}", percent(row.product), percent(row.sum), percent(row.top2))
        for row in evaluation.rows
    )
    return Table(
        f"Error on {evaluation.images:,} test images" + (f", {trained}" if trained else ""),
        ("decision", "passes", "product", "sum", "top-2"),
        (plain, *rows),
    )


def changes(evaluation: Evaluation) -> str:
    """Describe how many plain predictions APAC corrects and corrupts, and whether that may be chance."""
    corrected, corrupted = len(evaluation.corrected), len(evaluation.corrupted)
    return describe_changes(corrected, corrupted, evaluation.mcnemar, evaluation.images)


def describe_changes(corrected: int, corrupted: int, p: float, images: int) -> str:
    """Say in words what the p-value of McNemar's test says about corrected and corrupted images."""
    difference = abs(corrected - corrupted)
    words = verdict(p)
    if p >= SIGNIFICANCE_LEVEL:
        words = f"a difference of {difference:,} image{'' if difference == 1 else 's'}, which {words}"
    elif corrupted > corrected:
        words = f"the plain prediction is better here, {words}"
    return (
        f"APAC corrects {corrected:,} and corrupts {corrupted:,} of the {images:,} plain predictions: {words} "
        f"(McNemar p = {p:.2g})."
    )


def verdict(p: float) -> str:
    """Say in words what a p-value means for a difference."""
    if p >= SIGNIFICANCE_LEVEL:
        return "may be chance"
    return "far beyond chance" if p < 1e-6 else "beyond chance" if p < 0.01 else "probably not chance"


def by_class(predictions: Predictions) -> Table:
    """Return the errors of each class; of many classes, those with the largest errors."""
    errors = [error for error in predictions.class_errors() if error.plain is not None and error.apac is not None]
    title = "Error by class"
    if len(errors) > MAX_CLASSES:
        title = f"The {MAX_CLASSES} of {len(errors)} classes with the largest error"
        errors = sorted(errors, key=lambda error: (-(error.apac or 0), -(error.plain or 0)))[:MAX_CLASSES]
    rows = [(e.name, f"{e.images:,}", percent(e.plain or 0), percent(e.apac or 0)) for e in errors]
    return Table(title, ("class", "images", "plain", "APAC"), tuple(rows), highlight_last=False)


def certified(result: CertifiedEvaluation, plain: float) -> Table:
    """Return the passes and the error of the certified rule, and the error of the plain prediction."""
    rows = [
        ("test error, plain", percent(plain)),
        ("test error, APAC", percent(result.wrong)),
        ("passes, mean", f"{result.mean:,.1f}"),
        ("passes, median", f"{result.median:,.0f}"),
        ("passes, 99th percentile", f"{result.percentile99:,.0f}"),
        (f"not settled, limit {result.rule.limit:,}", _fraction(result.unsettled, result)),
        ("settled with the clip active", _fraction(result.clipped, result)),
        ("time", f"{result.seconds:.1f} s"),
    ]
    if result.failed:
        rows.append(("not decided: NaN", _fraction(result.failed, result)))
    title = f"{result.images:,} test images, probability of settling falsely at most {result.rule.error:g}"
    return Table(title, ("", "certified rule"), tuple(rows))


def certified_by_error(results: Sequence[CertifiedEvaluation], evaluation: Evaluation) -> Table:
    """Compare the certified rule at several error probabilities with the largest fixed number of passes."""
    assert evaluation.scores is not None
    fixed_labels = rank(evaluation.scores.log_mean)[:, 0]
    rows = [
        (
            f"{result.rule.error:g}",
            f"{result.mean:,.1f}",
            f"{result.median:,.0f}",
            f"{result.percentile99:,.0f}",
            f"{result.unsettled:,}",
            f"{int((result.settled & (result.decision.labels != fixed_labels)).sum()):,}",
            percent(result.wrong),
        )
        for result in sorted(results, key=lambda result: -result.rule.error)
    ]
    largest = evaluation.rows[-1].passes
    columns = ("error", "mean passes", "median", "99th percentile", "not settled", "differ", "test error")
    title = f"Certified decisions of {evaluation.images:,} images; 'differ' is relative to {largest:,} passes"
    return Table(title, columns, tuple(rows))


def _fraction(images: int, result: CertifiedEvaluation) -> str:
    return f"{images:,} of {result.images:,} ({percent(images / result.images)})"


def agreement(agreement: Agreement, result: CertifiedEvaluation) -> str:
    """Compare the certified decisions with those after a fixed number of passes, one line per difference."""
    lines = [
        f"{len(agreement.differ):,} of {agreement.certified:,} settled answers and "
        f"{len(agreement.differ_at_limit):,} of those not settled differ from the decisions after "
        f"{agreement.passes:,} passes, which have {percent(agreement.wrong)} error and took "
        f"{agreement.seconds:,.0f} s, {_times(agreement.seconds / max(result.seconds, 1e-3))} as long."
    ]
    lines += [
        f"  image {d.image}: settled on {d.certified} by {d.margin:.4f}"
        f"{'' if d.margin_error is None else f' ± {d.margin_error:.4f}'} after {d.passes:,} passes, finally "
        f"{d.fixed} by {d.fixed_margin:.4f}"
        for d in agreement.differ
    ]
    return "\n".join(lines)


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.1f} times"


def percent(fraction: float) -> str:
    return f"{100 * fraction:.2f} %"
