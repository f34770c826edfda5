"""Measures of probabilities as tables and sentences, which say what may be chance."""

from __future__ import annotations

import math
from collections.abc import Sequence

from apac.evaluation.certified_measures import Answers, CertifiedMeasures
from apac.evaluation.fixed import Evaluation
from apac.evaluation.measures import RISK, Estimate, Measures
from apac.reporting.tables import Table, percent, verdict


def largest(evaluation: Evaluation) -> tuple[Measures, ...]:
    """Return the measures of the plain prediction and, if there are passes, of product and sum with the largest M."""
    rules = ("plain", "product", "sum") if evaluation.rows else ("plain",)
    return tuple(evaluation.measures_of(rule) for rule in rules)


def side_by_side(measures: Sequence[Measures]) -> Table:
    """Compare rules on the same images, one column each, the plain prediction first; ± is a standard error."""
    rows = [
        ("error", *(percent(m.error.value) for m in measures)),
        ("  95 % interval", *(_interval(m.error_interval) for m in measures)),
        ("top-2 error", *(percent(m.top2.value) for m in measures)),
        ("neg. log-likelihood", *(_number(m.uncalibrated.nll) for m in measures)),
        ("  calibrated", *(_number(m.calibrated.nll) for m in measures)),
        ("  temperature", *(f"{m.temperature:.2f}" for m in measures)),
        ("Brier score", *(_number(m.uncalibrated.brier) for m in measures)),
        ("  calibrated", *(_number(m.calibrated.brier) for m in measures)),
        ("calibration error", *(_share(m.uncalibrated.calibration_error) for m in measures)),
        ("  calibrated", *(_share(m.calibrated.calibration_error) for m in measures)),
        ("AURC (risk-coverage)", *(_share(m.uncalibrated.aurc) for m in measures)),
        ("AUGRC", *(_share(m.uncalibrated.augrc) for m in measures)),
        (f"coverage at {100 * RISK:g} % risk", *(_share(m.uncalibrated.coverage) for m in measures)),
    ]
    last = measures[-1]
    mean = "a mean of " if last.rule == "certified" else ""
    passes = f"after {mean}{last.passes:,.0f} passes" if len(measures) > 1 else "without deformation"
    title = f"Measures {passes}, ± standard error"
    return Table(title, ("", *(part.rule for part in measures)), tuple(rows), highlight_last=False)


def likelihood_against_m(evaluation: Evaluation) -> Table:
    """Return the negative log-likelihood for each M, as it is and calibrated, with the temperatures that calibrate."""
    rows = []
    for passes in dict.fromkeys(part.passes for part in evaluation.measures if part.rule == "product"):
        both = [evaluation.measures_of(rule, int(passes)) for rule in ("product", "sum")]
        rows.append(("APAC", f"{passes:,}", *_likelihood(both)))
    plain = ("plain", "1", *_likelihood([evaluation.measures_of("plain")] * 2))
    columns = ("decision", "passes", "product", "calibrated", "T", "sum", "calibrated", "T")
    return Table("Negative log-likelihood", columns, (plain, *rows))


def likelihood_sentence(plain: Measures, apac: Measures) -> str:
    """Say how the calibrated likelihood changes, and whether that may be chance."""
    before, after = plain.calibrated.nll, apac.calibrated.nll
    if after.change_error == 0:
        return f"The calibrated negative log-likelihood stays at {after.value:.3f}."
    errors = abs(after.change) / after.change_error
    words = verdict(math.erfc(errors / math.sqrt(2)))
    moved = "falls" if after.change < 0 else "rises"
    return (
        f"The calibrated negative log-likelihood {moved} from {before.value:.3f} to {after.value:.3f} "
        f"({100 * after.change / before.value:+.0f} %, {errors:.1f} standard errors): {words}."
    )


def temperature_sentence(held_out: int) -> str:
    """Say on which images the temperatures were fitted."""
    if held_out:
        return f"Temperatures were fitted on {held_out:,} training images that the run held out."
    return "Temperatures were cross-fitted: for each fifth of the evaluated images on the others."


def settled_sentence(measured: CertifiedMeasures) -> str:
    """Say how many settled answers are right, and how many others."""
    parts = [
        _answers(answers, name)
        for answers, name in ((measured.settled, "settled"), (measured.not_settled, "not settled"))
        if answers.images
    ]
    return f"Settled means that more passes would not change the answer, not that it is right: {'; '.join(parts)}."


def _answers(answers: Answers, name: str) -> str:
    share = answers.right / answers.images
    return f"of {answers.images:,} {name} answers {percent(share)} are right ({_interval(answers.interval)})"


def _likelihood(both: Sequence[Measures]) -> list[str]:
    return [
        cell
        for part in both
        for cell in (
            f"{part.uncalibrated.nll.value:.4f}",
            f"{part.calibrated.nll.value:.4f}",
            f"{part.temperature:.2f}",
        )
    ]


def _interval(bounds: tuple[float, float]) -> str:
    return f"{100 * bounds[0]:.2f}-{percent(bounds[1])}"


def _number(estimate: Estimate) -> str:
    """Return a number with the digits that its standard error leaves."""
    digits = _digits(estimate.standard_error, min_digits=3)
    return f"{estimate.value:.{digits}f} ± {estimate.standard_error:.{digits}f}"


def _share(estimate: Estimate) -> str:
    error = 100 * estimate.standard_error
    digits = _digits(error, min_digits=2)
    return f"{100 * estimate.value:.{digits}f} ± {error:.{digits}f} %"


def _digits(error: float, min_digits: int) -> int:
    return min_digits if error == 0 else min(min_digits + 2, max(min_digits, -math.floor(math.log10(error))))
