"""The opening of a report: what APAC gains for a shipped network, and what in the report is chance."""

from __future__ import annotations

from torch import Tensor

from apac.evaluation.intervals import mcnemar
from apac.paper.reproduce import Result
from apac.paper.showcase import Showcase
from apac.paper.table2 import NAMES
from apac.reporting import html
from apac.reporting.tables import Table, percent, verdict

P_VALUE = (
    "p is the probability that two equally good rules differ at least as much on these images (exact McNemar test on "
    "the corrected and corrupted images). A few images of a small test set are no evidence, in either direction."
)


def headline(showcase: Showcase) -> str:
    """Return the effect of APAC on the shipped network, in one sentence."""
    evaluation = showcase.evaluation
    plain, apac = (round(error * evaluation.images) for error in (evaluation.plain, evaluation.rows[-1].product))
    images = f"{evaluation.images:,} test images of {_data(showcase)}"
    if apac >= plain:
        return f"On {images}, the network makes {plain:,} errors, and {apac:,} when it decides by APAC: no gain."
    return (
        f"On {images}, the same network makes {apac:,} errors instead of {plain:,} when it decides by APAC: "
        f"{100 * (plain - apac) / plain:.0f} % fewer, without new training ({verdict(evaluation.mcnemar)})."
    )


def caption(showcase: Showcase) -> str:
    """Describe the picture of a corrected image, and how the image was chosen."""
    corrected, corrupted = (len(part) for part in (showcase.evaluation.corrected, showcase.evaluation.corrupted))
    return (
        f"Of the {corrected:,} test images that APAC corrects, the one whose true class gains the most probability "
        f"({corrupted:,} images change the other way round). Below each copy is the prediction of its pass. The bars "
        "are probabilities, calibrated by a temperature that was fitted on held-out training images; blue is the true "
        "class."
    )


def tables(result: Result) -> list[Table]:
    """Return the tables about the recipe's showcase, in the order of printing."""
    gained = [gain(result.showcase)] if result.showcase else []
    return [*gained, evidence(result)] if result.recipe.showcase else []


def gain(showcase: Showcase) -> Table:
    """Return the error and the calibrated likelihood of the plain prediction and of APAC, with 95 % intervals."""
    plain, apac = showcase.plain, showcase.apac
    error, likelihood = apac.error, apac.calibrated.nll
    rows = [
        (name, _percent(part.error.value, *part.error_interval), _number(nll.value, nll.standard_error))
        for name, part, nll in (
            ("plain", plain, plain.calibrated.nll),
            (f"APAC, {apac.passes:,} passes", apac, likelihood),
        )
    ]
    low, high = _around(error.change, error.change_error)
    change = f"{100 * error.change:.2f} points ({100 * low:.2f} to {100 * high:.2f})"
    rows.append(("difference", change, _number(likelihood.change, likelihood.change_error)))
    images = f"{showcase.evaluation.images:,} test images of {_data(showcase)}"
    title = f"{showcase.run.network_name} on {images}, with 95 % intervals; NLL is the negative log-likelihood"
    return Table(title, ("decided by", "error", "calibrated NLL"), tuple(rows))


def sections(result: Result, text: str = "") -> list[html.Section]:
    """Return the sections about the recipe's showcase: the gain, introduced by `text`, and what is chance."""
    if not result.recipe.showcase:
        return []
    first = html.Section("", text=result.skipped)
    if result.showcase:
        first = html.Section("What APAC does", text=text, table=gain(result.showcase))
    return [first, html.Section("What is chance, and what is not", text=P_VALUE, table=evidence(result))]


def sentences(result: Result) -> list[str]:
    """Return the headline, or why there is none; nothing for a recipe without a showcase."""
    return [headline(result.showcase)] if result.showcase else [result.skipped] if result.skipped else []


def evidence(result: Result) -> Table:
    """Return the comparisons of a report, with the number of changed decisions and what chance makes of it."""
    rows = []
    if result.showcase:
        e = result.showcase.evaluation
        name = f"{_data(result.showcase)}: plain → APAC"
        rows.append(_compared(name, len(e.corrected), len(e.corrupted), e.plain, e.images))
    labels, images = result.dataset.test_labels, len(result.dataset.test_labels)
    original = result.baseline.plain_labels == labels
    plain, apac = result.evaluation.plain_labels == labels, result.evaluation.labels == labels
    for change, old, new in (("original → deformed training", original, plain), ("plain → APAC", plain, apac)):
        counts = _count(new & ~old), _count(old & ~new)
        rows.append(_compared(f"{result.recipe.data}: {change}", *counts, _count(~old) / images, images))
    columns = ("comparison", "error", "corrected", "corrupted", "p", "verdict")
    return Table("Changed decisions", columns, tuple(rows), highlight_last=False)


def _compared(name: str, corrected: int, corrupted: int, error: float, images: int) -> tuple[str, ...]:
    p = mcnemar(corrected, corrupted)
    errors = f"{100 * error:.2f} → {percent(error - (corrected - corrupted) / images)}"
    return name, errors, f"{corrected:,}", f"{corrupted:,}", f"{p:.2g}", verdict(p)


def _count(mask: Tensor) -> int:
    return int(mask.sum())


def _data(showcase: Showcase) -> str:
    name = showcase.run.data or ""
    return NAMES.get(name, name)


def _around(value: float, standard_error: float) -> tuple[float, float]:
    """Return the 95 % interval of the normal approximation."""
    return value - 1.96 * standard_error, value + 1.96 * standard_error


def _percent(value: float, low: float, high: float) -> str:
    return f"{percent(value)} ({100 * low:.2f} to {100 * high:.2f})"


def _number(value: float, standard_error: float) -> str:
    low, high = _around(value, standard_error)
    return f"{value:.3f} ({low:.3f} to {high:.3f})"
