"""The results as tables: plain data here, drawn by the command and the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from apac.classify.scores import rank
from apac.evaluation.certified import Agreement, CertifiedEvaluation
from apac.evaluation.fixed import Evaluation, mcnemar
from apac.paper.recipes import LABELS, Errors


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    last: bool = True  # whether the last row is the one to look at


def error_against_m(evaluation: Evaluation, trained: str = "") -> Table:
    """The plain prediction and APAC at each M, and how the network was trained, if that is to be told apart."""
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


def summary(evaluations: Mapping[str, Evaluation], paper: Mapping[str, Errors], sets: Mapping[str, int]) -> Table:
    """The trainings by name, with the paper's errors beside those that it made; `sets` are the N_d of each."""

    def here(error: float) -> str:
        return f"{percent(error)} ± {100 * math.sqrt(error * (1 - error) / images):.2f}"

    def there(error: float | None) -> str:
        return "not tried" if error is None else f"{error:.2f} %"

    images, rows = 0, []
    for name, evaluation in evaluations.items():
        images, theirs = evaluation.images, paper.get(name)
        rows.append((LABELS[name], "plain", here(evaluation.plain), there(theirs.plain if theirs else None)))
        if evaluation.rows:
            largest = evaluation.rows[-1]
            rule = f"APAC, {f'{sets[name]} × ' if sets[name] > 1 else ''}{largest.passes:,} passes"
            rows.append((LABELS[name], rule, here(largest.product), there(theirs.apac if theirs else None)))
    title = f"Test error on {images:,} images, ± one standard error of such a share"
    return Table(title, ("trained on", "decided by", "here", "paper"), tuple(rows))


def changes(evaluation: Evaluation) -> str:
    """What APAC changed against the plain prediction, in a sentence."""
    return (
        f"APAC corrected {len(evaluation.corrected)} and corrupted {len(evaluation.corrupted)} of the "
        f"{evaluation.images:,} plain predictions (McNemar p = {evaluation.mcnemar:.2g})."
    )


def against(evaluation: Evaluation, name: str, other: Evaluation, other_name: str) -> str:
    """What APAC decides otherwise after another training, in a sentence."""
    ours, theirs = set(other.wrong) - set(evaluation.wrong), set(evaluation.wrong) - set(other.wrong)
    return (
        f"With {LABELS[name]} APAC is right where it is wrong with {LABELS[other_name]} for {len(ours)} images, and "
        f"the other way round for {len(theirs)} (McNemar p = {mcnemar(len(ours), len(theirs)):.2g})."
    )


def certainty(certainty: CertifiedEvaluation, plain: float) -> Table:
    """What the certified rule took, and its error beside the plain prediction's."""
    rows = [
        ("test error, plain", percent(plain)),
        ("test error, certified", percent(certainty.wrong)),
        ("passes, mean", f"{certainty.mean:,.1f}"),
        ("passes, median", f"{certainty.median:,.0f}"),
        ("passes, 99th percentile", f"{certainty.percentile99:,.0f}"),
        (f"not certain, limit {certainty.rule.limit:,}", _share(certainty.uncertain, certainty)),
        ("certified with the clip active", _share(certainty.clipped, certainty)),
        ("time", f"{certainty.seconds:.1f} s"),
    ]
    if certainty.failed:
        rows.append(("not decided: NaN", _share(certainty.failed, certainty)))
    title = (
        f"{certainty.images:,} test images, certified falsely with a probability of at most {certainty.rule.error:g}"
    )
    return Table(title, ("", "certified rule"), tuple(rows))


def certainties(certainties: Sequence[CertifiedEvaluation], evaluation: Evaluation) -> Table:
    """The certified rule with several errors, beside the most passes that were evaluated."""
    assert evaluation.scores is not None
    fixed = rank(evaluation.scores.log_mean)[:, 0]
    rows = [
        (
            f"{each.rule.error:g}",
            f"{each.mean:,.1f}",
            f"{each.median:,.0f}",
            f"{each.percentile99:,.0f}",
            f"{each.uncertain:,}",
            f"{int((each.certain & (each.decision.labels != fixed)).sum()):,}",
            percent(each.wrong),
        )
        for each in sorted(certainties, key=lambda each: -each.rule.error)
    ]
    largest = evaluation.rows[-1].passes
    columns = ("error allowed", "mean passes", "median", "99th percentile", "uncertain", "differ", "test error")
    title = f"Certified decisions of {evaluation.images:,} images; how many differ from {largest:,} passes"
    return Table(title, columns, tuple(rows))


def _share(images: int, certainty: CertifiedEvaluation) -> str:
    return f"{images:,} of {certainty.images:,} ({percent(images / certainty.images)})"


def agreement(agreement: Agreement, certainty: CertifiedEvaluation) -> str:
    """The certified decisions beside those of a fixed number of passes, in sentences."""
    lines = [
        f"Of {agreement.certified:,} certified decisions {len(agreement.differ):,} differ from those of "
        f"{agreement.passes:,} passes, and of the uncertain ones {len(agreement.differ_at_limit):,}. Those passes have "
        f"{percent(agreement.wrong)} error and took {agreement.seconds:,.0f} s when they were made, "
        f"{_times(agreement.seconds / max(certainty.seconds, 1e-3))} as long."
    ]
    lines += [
        f"  image {d.image}: certified {d.certified} by {d.margin:.4f}"
        f"{'' if d.margin_error is None else f' ± {d.margin_error:.4f}'} after {d.passes:,} passes, then {d.fixed} by "
        f"{d.fixed_margin:.4f}"
        for d in agreement.differ
    ]
    return "\n".join(lines)


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.1f} times"


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"
