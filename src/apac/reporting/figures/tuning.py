"""The figure of a tuning: likelihood against strength."""

from __future__ import annotations

from apac.classify.choice import Choice
from apac.reporting.figures.canvas import APAC, PLAIN, SUM, blank, png


def nll_against_strength(choice: Choice) -> bytes:
    """Draw the calibrated negative log-likelihood against the strength, with standard errors; plain as a line."""
    figure = blank(6.4, 4.4)
    axes = figure.subplots()
    plain, others = choice.plain, choice.candidates[1:]
    for combine, color, style, text in (
        ("sum", SUM, "s--", "sum"),
        ("product", APAC, "o-", "product (the paper's rule)"),
    ):
        shown = [candidate for candidate in others if candidate.combine == combine]
        axes.errorbar(
            [candidate.strength for candidate in shown],
            [candidate.nll for candidate in shown],
            [candidate.nll_error for candidate in shown],
            fmt=style,
            color=color,
            markersize=5,
            capsize=2,
            linewidth=1.2,
            label=text,
        )
    axes.axhline(plain.nll, color=PLAIN, linestyle=":", label=f"plain: {plain.nll:.4f} ± {plain.nll_error:.4f}")
    axes.axhspan(plain.nll - plain.nll_error, plain.nll + plain.nll_error, color=PLAIN, alpha=0.08, linewidth=0)
    chosen = choice.chosen
    axes.plot(
        [chosen.strength],
        [chosen.nll],
        "o",
        markersize=13,
        markerfacecolor="none",
        markeredgecolor="black",
        label=f"chosen: {chosen}",
    )
    axes.set_xticks([candidate.strength for candidate in (plain, *others) if candidate.combine == "product"])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("strength of the deformation; 1 is that of the training")
    axes.set_ylabel("negative log-likelihood after a temperature")
    axes.set_title(f"{choice.images:,} held-out images, {choice.passes:,} passes", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return png(figure)
