"""Figures of errors, passes and margins."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from apac.classify.combine import COMBINATIONS
from apac.classify.decision import Decision
from apac.evaluation.certified import CertifiedEvaluation
from apac.evaluation.fixed import Evaluation
from apac.reporting.figures.canvas import APAC, NETWORKS, ORIGINAL, PLAIN, SUM, blank, error_axis, passes_axis, png


def error_against_m(deformed: Evaluation, original: Evaluation) -> bytes:
    """Draw the test error against M, with the errors of the plain predictions as lines."""
    figure = blank(6.4, 4.4)
    axes = figure.subplots()
    passes = [row.passes for row in deformed.rows]
    axes.plot(
        passes, [100 * row.sum for row in deformed.rows], "s--", color=SUM, markersize=4, label="sum of softmaxes"
    )
    axes.plot(passes, [100 * row.product for row in deformed.rows], "o-", color=APAC, label="APAC (product)")
    for error, color, text in (
        (deformed.plain, PLAIN, "plain, deformed training"),
        (original.plain, ORIGINAL, "plain, original training"),
    ):
        axes.axhline(100 * error, color=color, linestyle=":", label=f"{text}: {100 * error:.2f} %")
    passes_axis(axes)
    axes.set_xticks(passes)
    axes.set_xlabel("M, passes per test image")
    error_axis(axes, [deformed.plain, original.plain, *(min(row.sum, row.product) for row in deformed.rows)])
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return png(figure)


def networks_against_m(evaluations: Mapping[str, Evaluation]) -> bytes:
    """Draw the test error against M for several networks, with the errors of the plain predictions as lines."""
    figure = blank(6.4, 4.4)
    axes = figure.subplots()
    for color, (name, evaluation) in zip(NETWORKS, evaluations.items(), strict=False):
        passes = [row.passes for row in evaluation.rows]
        axes.plot(passes, [100 * row.product for row in evaluation.rows], "o-", color=color, label=f"{name}, APAC")
        text = f"{name}, plain: {100 * evaluation.plain:.2f} %"
        axes.axhline(100 * evaluation.plain, color=color, linestyle=":", label=text)
    passes_axis(axes)
    rows = [row for evaluation in evaluations.values() for row in evaluation.rows]
    axes.set_xlabel("M, passes per test image")
    axes.set_xticks(sorted({row.passes for row in rows}))
    error_axis(axes, [row.product for row in rows] + [evaluation.plain for evaluation in evaluations.values()])
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return png(figure)


def certified(results: Sequence[CertifiedEvaluation], evaluation: Evaluation) -> bytes:
    """Draw the passes of the strictest certified rule, and the test error against mean passes, certified and fixed."""
    figure = blank(9.6, 4.0)
    left, right = figure.subplots(1, 2)
    strictest = min(results, key=lambda result: result.rule.error)
    passes = strictest.decision.passes.tolist()
    edges = [16 * 2 ** (k / 2) * 0.84 for k in range(math.ceil(2 * math.log2(max(passes) / 16)) + 2)]
    left.hist(passes, bins=edges, color=APAC)
    passes_axis(left)
    left.set(xlabel="passes per image", ylabel="images", yscale="log", ylim=(0.7, None))
    left.yaxis.set_major_formatter("{x:,.0f}")
    left.set_title(
        f"error {strictest.rule.error:g}: mean {strictest.mean:.0f}, median {strictest.median:.0f}", fontsize=9
    )
    rows = evaluation.rows
    right.plot([row.passes for row in rows], [100 * row.product for row in rows], "o-", color=SUM, label="fixed M")
    ordered = sorted(results, key=lambda result: result.mean)
    right.plot(
        [result.mean for result in ordered],
        [100 * result.wrong for result in ordered],
        "D-",
        color=APAC,
        label="certified",
    )
    for result in ordered:
        right.annotate(
            f"{result.rule.error:g}",
            (result.mean, 100 * result.wrong),
            (-3, 7),
            textcoords="offset points",
            fontsize=8,
            rotation=60,
        )
    right.axhline(100 * evaluation.plain, color=PLAIN, linestyle=":", label="plain")
    passes_axis(right)
    right.set_xlabel("mean passes per image")
    error_axis(right, [evaluation.plain, *(row.product for row in rows), *(result.wrong for result in ordered)])
    right.legend(frameon=False, fontsize=9)
    return png(figure)


def passes_against_margin(decision: Decision, labels: Tensor) -> bytes:
    """Draw the passes of each image against the final margin of its label."""
    figure = blank(6.4, 4.4)
    axes = figure.subplots()
    correct = decision.labels == labels
    certified, limit = (
        torch.tensor([stopped == reason for stopped in decision.stopped]) for reason in ("certified", "limit")
    )
    shown = decision.margins.isfinite() & (decision.margins > 0)  # a logarithmic axis cannot show ties
    for mask, mark, color, text in (
        (certified & correct, "o", APAC, "settled, right"),
        (certified & ~correct, "o", PLAIN, "settled, wrong"),
        (limit, "x", ORIGINAL, "not settled at the limit"),
    ):
        if mask.any():
            margins, passes = decision.margins[mask & shown], decision.passes[mask & shown]
            count = f"{text}: {int(mask.sum()):,}"
            axes.scatter(margins, passes, s=12, marker=mark, color=color, alpha=0.5, label=count)
    if shown.any():
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    score = COMBINATIONS[decision.combine].quantity
    axes.set(xlabel=f"margin: mean {score} of the label minus that of the runner-up", ylabel="passes")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    return png(figure)
