"""Figures of probabilities: are they right as often as they say, and what does leaving out doubtful images gain?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apac.evaluation.measures import RISK, Measures, ProbabilityMeasures
from apac.reporting.figures.canvas import APAC, ORIGINAL, PLAIN, SUM, blank, png

STYLES = {"plain": (PLAIN, "o:"), "product": (APAC, "o-"), "sum": (SUM, "s--")}
MIN_IMAGES = 10  # of a point; the accuracy of fewer is chance


def reliability(measures: Sequence[Measures]) -> bytes:
    """Draw the accuracy of answers against their probability, as it is and after the temperature.

    On the diagonal, probabilities are right. Below it, answers are right less often than their probability says.
    """
    figure = blank(9.6, 5.4)
    left, right = figure.subplots(1, 2, sharey=True)
    for part in measures:
        color, style = STYLES[part.rule]
        _bins(left, part.uncalibrated, color, style, f"{_name(part)}: calibration error ")
        _bins(right, part.calibrated, color, style, f"{_name(part)}, T = {part.temperature:.2f}: calibration error ")
    for axes, title in ((left, "Probabilities at temperature 1"), (right, "Calibrated by a temperature T")):
        axes.plot([0, 1], [0, 1], color=ORIGINAL, linewidth=0.8, zorder=0)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="probability of the answer", title=title)
        axes.set_aspect("equal")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    left.set_ylabel("share of right answers")
    left.text(0.97, 0.04, "below the line: too confident", ha="right", fontsize=8, color=ORIGINAL)
    return png(figure)


def _bins(axes: Any, part: ProbabilityMeasures, color: str, style: str, text: str) -> None:
    shown = [bin for bin in part.bins if bin.images >= MIN_IMAGES] or [bin for bin in part.bins if bin.images]
    confidence, accuracy = ([getattr(bin, name) for bin in shown] for name in ("confidence", "accuracy"))
    label = f"{text}{100 * part.calibration_error.value:.2f} %"
    axes.plot(confidence, accuracy, style, color=color, markersize=4, label=label)


def risk_coverage(measures: Sequence[Measures]) -> bytes:
    """Draw the error among the answers of the largest probability, against their share of all images.

    The right end is the error of all images. The lower a curve, the fewer errors remain if the least probable answers
    are left to a person.
    """
    figure = blank(6.4, 4.4)
    axes = figure.subplots()
    for part in measures:
        color, style = STYLES[part.rule]
        curve, area, coverage = (getattr(part.uncalibrated, name) for name in ("curve", "aurc", "coverage"))
        label = f"{_name(part)}: AURC {100 * area.value:.2g} %, {100 * coverage.value:.1f} % at {100 * RISK:g} % risk"
        axes.plot(100 * curve.coverage, 100 * curve.risk, style.lstrip("os"), color=color, label=label)
    axes.axhline(100 * RISK, color=ORIGINAL, linewidth=0.8, zorder=0)
    worst = 100 * max(part.error.value for part in measures)
    axes.set(xlim=(0, 100), ylim=(0, 1.3 * worst or 1))
    axes.set(xlabel="coverage: share of the images that are answered (%)", ylabel="error among them (%)")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    return png(figure)


def _name(part: Measures) -> str:
    return part.rule if part.rule == "plain" else f"{part.rule}, {part.passes:,.0f} passes"
