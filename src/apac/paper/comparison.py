"""Comparison of the results of a recipe with the paper, and of its two training runs with each other."""

from __future__ import annotations

import math
from collections.abc import Mapping

from apac.evaluation.fixed import Evaluation
from apac.evaluation.intervals import mcnemar
from apac.paper.recipe import LABELS, Errors
from apac.reporting.tables import Table, percent


def summary(evaluations: Mapping[str, Evaluation], paper: Mapping[str, Errors], sets: Mapping[str, int]) -> Table:
    """Return the test errors of each training and the paper's; `sets` has N_d, the number of deformation sets."""

    def measured(error: float) -> str:
        return f"{percent(error)} ± {100 * math.sqrt(error * (1 - error) / images):.2f}"

    def published(error: float | None) -> str:
        return "not tried" if error is None else f"{error:.2f} %"

    images, rows = 0, []
    for name, evaluation in evaluations.items():
        images, errors = evaluation.images, paper.get(name)
        rows.append((LABELS[name], "plain", measured(evaluation.plain), published(errors.plain if errors else None)))
        if evaluation.rows:
            largest = evaluation.rows[-1]
            rule = f"APAC, {f'{sets[name]} × ' if sets[name] > 1 else ''}{largest.passes:,} passes"
            rows.append((LABELS[name], rule, measured(largest.product), published(errors.apac if errors else None)))
    title = f"Test error on {images:,} images ± one standard error"
    return Table(title, ("trained on", "decided by", "here", "paper"), tuple(rows))


def differences(evaluation: Evaluation, name: str, other: Evaluation, other_name: str) -> str:
    """Describe the images that APAC classifies correctly after only one of two training runs."""
    first, second = set(other.wrong) - set(evaluation.wrong), set(evaluation.wrong) - set(other.wrong)
    return (
        f"APAC is right for {len(first)} images with {LABELS[name]} alone, and for {len(second)} with "
        f"{LABELS[other_name]} alone (McNemar p = {mcnemar(len(first), len(second)):.2g})."
    )
