"""The figure of a tuning: likelihood against strength."""

from __future__ import annotations

from apac.classify.choice import Candidate, Choice
from apac.reporting.figures.canvas import APAC, PLAIN, SUM, blank, png


def nll_against_strength(choice: Choice) -> bytes:
    """Draw how far the calibrated negative log-likelihood of each candidate is above the best; plain as a line.

    Bars are one standard error of that difference, image by image, by which a candidate is chosen: candidates whose
    bars reach 0 are within one standard error of the best.
    """
    figure = blank(6.4, 4.4)
    axes = figure.subplots()
    plain, others = choice.plain, choice.candidates[1:]
    for combine, color, style, text in (
        ("sum", SUM, "s--", "sum"),
        ("product", APAC, "o-", "product (the paper's rule)"),
    ):
        shown = [candidate for candidate in others if candidate.combine == combine]
        axes.errorbar(
            [_position(candidate) for candidate in shown],
            [candidate.above_best for candidate in shown],
            [candidate.above_best_error for candidate in shown],
            fmt=style,
            color=color,
            markersize=5,
            capsize=2,
            linewidth=1.2,
            label=text,
        )
    line, error = plain.above_best, plain.above_best_error
    axes.axhline(line, color=PLAIN, linestyle=":", label=f"plain: {line:.4f} ± {error:.4f}" if error else "plain: best")
    axes.axhspan(line - error, line + error, color=PLAIN, alpha=0.08, linewidth=0)
    axes.axhline(0, color="black", linewidth=0.8)
    chosen = choice.chosen
    axes.plot(
        [_position(chosen)],
        [chosen.above_best],
        "o",
        markersize=13,
        markerfacecolor="none",
        markeredgecolor="black",
        clip_on=False,  # strength 0 is at the edge
        label=f"chosen: {chosen}",
    )
    axes.set_xticks([candidate.strength for candidate in (plain, *others) if candidate.combine == "product"])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("strength of the deformation; 1 is that of the training")
    axes.set_ylabel("negative log-likelihood above the best\n(paired difference ± standard error)")
    best = min(candidate.nll for candidate in choice.candidates)
    axes.set_title(
        f"{choice.images:,} held-out images, {choice.passes:,} passes, after a temperature; best: {best:.4f}",
        fontsize=9,
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return png(figure)


def _position(candidate: Candidate) -> float:
    """Return the strength, moved a little so that the bars of product and sum do not hide each other."""
    side = {"product": -1, "sum": 1}[candidate.combine] if candidate.strength else 0
    return candidate.strength + 0.008 * side
