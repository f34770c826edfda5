"""The results as tables: plain data here, drawn by the command and the report."""

from __future__ import annotations

import math
from dataclasses import dataclass

from apac.evaluate import Evaluation
from apac.paper.recipes import PaperRow


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def error_against_m(evaluation: Evaluation) -> Table:
    """The plain prediction and APAC at each M."""
    plain = ("plain", "1", percent(evaluation.plain), percent(evaluation.plain), percent(evaluation.plain_top2))
    rows = tuple(
        ("APAC", f"{row.passes:,}", percent(row.product), percent(row.sum), percent(row.top2))
        for row in evaluation.rows
    )
    return Table(
        f"Error on {evaluation.images:,} test images",
        ("decision", "passes", "product", "sum", "top-2"),
        (plain, *rows),
    )


def summary(deformed: Evaluation, original: Evaluation, paper: PaperRow) -> Table:
    """The paper's Table 2 with this run beside it."""
    largest = deformed.rows[-1]

    def here(error: float) -> str:
        return f"{percent(error)} ± {100 * math.sqrt(error * (1 - error) / deformed.images):.2f}"

    return Table(
        f"Test error on {deformed.images:,} images, ± one standard error of such a share",
        ("trained on", "decided by", "here", "paper"),
        (
            ("original data", "plain", here(original.plain), f"{paper.original:.2f} %"),
            ("deformed data", "plain", here(deformed.plain), f"{paper.plain:.2f} %"),
            ("deformed data", f"APAC, {largest.passes:,} passes", here(largest.product), f"{paper.apac:.2f} %"),
        ),
    )


def changes(evaluation: Evaluation) -> str:
    """What APAC changed against the plain prediction, in a sentence."""
    return (
        f"APAC corrected {len(evaluation.corrected)} and spoiled {len(evaluation.spoiled)} of the "
        f"{evaluation.images:,} plain predictions (McNemar p = {evaluation.mcnemar:.2g})."
    )


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"
