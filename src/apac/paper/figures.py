"""The paper's figures. Each function draws one and returns it as PNG; this file alone imports matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator
from torch import Tensor, nn

from apac.certainty import Certainty
from apac.classify.classifier import Classifier
from apac.classify.decision import Decision
from apac.deform.base import Deformation
from apac.evaluate import Evaluation
from apac.randomness import generator

APAC, SUM, PLAIN, ORIGINAL = "#1f5fa8", "#7aa6d6", "#c1571d", "#8a8a8a"


def deformed_samples(images: Tensor, deformation: Deformation, *, columns: int = 9, seed: int = 0) -> bytes:
    """Each row an original and its virtual samples. Images (n, C, H, W) in [0, 1], not whitened, for visibility."""
    figure = Figure(figsize=(columns * 0.8 + 0.3, len(images) * 0.8 + 0.3), layout="constrained")
    axes = figure.subplots(len(images), columns, squeeze=False)
    shape = (images.shape[1], images.shape[2], images.shape[3])
    theta = deformation.sample(len(images) * (columns - 1), shape, generator=generator(seed, "figure", 0))
    virtual = deformation.apply(images.repeat_interleave(columns - 1, dim=0), theta)
    for row, image in enumerate(images):
        for column, shown in enumerate([image, *virtual[row * (columns - 1) : (row + 1) * (columns - 1)]]):
            _image(axes[row, column], shown)
        for side in axes[row, 0].spines.values():
            side.set(visible=True, color=PLAIN, linewidth=2)
    axes[0, 0].set_title("original", fontsize=8, color=PLAIN)
    axes[0, 1].set_title("virtual samples", fontsize=8, loc="left", color=APAC)
    return _png(figure)


def error_against_m(deformed: Evaluation, original: Evaluation) -> bytes:
    """Test error as M grows, with the plain predictions as lines."""
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    passes = [row.passes for row in deformed.rows]
    axes.plot(
        passes, [100 * row.sum for row in deformed.rows], "s--", color=SUM, markersize=4, label="sum of softmaxes"
    )
    axes.plot(passes, [100 * row.product for row in deformed.rows], "o-", color=APAC, label="APAC (product)")
    for error, colour, text in (
        (deformed.plain, PLAIN, "plain, deformed training"),
        (original.plain, ORIGINAL, "plain, original training"),
    ):
        axes.axhline(100 * error, color=colour, linestyle=":", label=f"{text}: {100 * error:.2f} %")
    _passes_axis(axes)
    axes.set_xticks(passes)
    axes.set(xlabel="M, passes of each test image", ylabel="test error (%)", ylim=(0, None))
    axes.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return _png(figure)


def certified(certainties: Sequence[Certainty], evaluation: Evaluation) -> bytes:
    """The passes that certainty takes, at the least error allowed; and what they buy, beside fixed numbers of them."""
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    strictest = min(certainties, key=lambda each: each.rule.error)
    passes = strictest.decision.passes.tolist()
    edges = [16 * 2 ** (k / 2) * 0.84 for k in range(math.ceil(2 * math.log2(max(passes) / 16)) + 2)]
    left.hist(passes, bins=edges, color=APAC)
    _passes_axis(left)
    left.set(xlabel="passes of an image", ylabel="images", yscale="log", ylim=(0.7, None))
    left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    left.set_title(
        f"error {strictest.rule.error:g}: mean {strictest.mean:.0f}, median {strictest.median:.0f}", fontsize=9
    )
    rows = evaluation.rows
    right.plot([row.passes for row in rows], [100 * row.product for row in rows], "o-", color=SUM, label="fixed M")
    ordered = sorted(certainties, key=lambda each: each.mean)
    right.plot([c.mean for c in ordered], [100 * c.wrong for c in ordered], "D-", color=APAC, label="certified")
    for each in ordered:
        right.annotate(
            f"{each.rule.error:g}",
            (each.mean, 100 * each.wrong),
            (-3, 7),
            textcoords="offset points",
            fontsize=8,
            rotation=60,
        )
    right.axhline(100 * evaluation.plain, color=PLAIN, linestyle=":", label="plain")
    _passes_axis(right)
    right.set(xlabel="passes of an image, mean", ylabel="test error (%)", ylim=(0, None))
    right.legend(frameon=False, fontsize=9)
    return _png(figure)


def passes_against_margin(decision: Decision, labels: Tensor) -> bytes:
    """The passes of each image, over the margin by which its label leads in the end."""
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    right = decision.labels == labels
    certified, limit = (torch.tensor([why == reason for why in decision.stopped]) for reason in ("certified", "limit"))
    shown = decision.margins.isfinite() & (decision.margins > 0)  # the axis has no place for ties
    for mask, mark, colour, text in (
        (certified & right, "o", APAC, "certified, and the true class"),
        (certified & ~right, "o", PLAIN, "certified, and not the true class"),
        (limit, "x", ORIGINAL, "not certain at the limit"),
    ):
        if mask.any():
            margins, passes = decision.margins[mask & shown], decision.passes[mask & shown]
            count = f"{text}: {int(mask.sum()):,}"
            axes.scatter(margins, passes, s=12, marker=mark, color=colour, alpha=0.5, label=count)
    if shown.any():
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    what = "log-probability" if decision.combine == "product" else "probability"
    axes.set(xlabel=f"margin: mean {what} of the label less that of the second class", ylabel="passes")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    return _png(figure)


def misclassified(
    images: Tensor, labels: Tensor, evaluation: Evaluation, classes: Sequence[str], most: int = 48
) -> bytes:
    """Images (N, C, H, W) in [0, 1] that APAC gets wrong: the truth at the top left, bars of the two best classes."""
    assert evaluation.scores is not None
    shown = evaluation.wrong[:most]
    columns = min(8, max(1, len(shown)))
    lines = max(1, math.ceil(len(shown) / columns))
    figure = Figure(figsize=(columns * 1.25, lines + 0.1), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False)
    for place in axes.flat:
        place.axis("off")
    # What the rule ranks, as probabilities: the normalised geometric mean of the softmaxes.
    shares = evaluation.scores.log_mean.softmax(dim=1)
    for place, index in zip(axes.flat, shown, strict=False):
        truth = int(labels[index])
        place.axis("on")
        _image(place, images[index])
        place.text(0.04, 0.96, classes[truth], transform=place.transAxes, va="top", color="#ffd34d", fontsize=11)
        _top_two(place, shares[index], classes, truth)
    if not shown:
        axes[0, 0].text(0.5, 0.5, "none", ha="center")
    return _png(figure)


def corrected(images: Tensor, labels: Tensor, classifier: Classifier, shown: Tensor, classes: Sequence[str]) -> bytes:
    """How one image is decided, images (1, C, H, W) as the network takes them and `shown` (1, C, H, W) in [0, 1]:
    the plain prediction above; virtual samples, what the network says of each, and their mean log-probability below."""
    samples, truth = 6, int(labels[0])
    shape = (images.shape[1], images.shape[2], images.shape[3])
    figure = Figure(figsize=(11, 3.9), layout="constrained")
    axes = figure.subplots(2, samples + 1, width_ratios=[1] * samples + [2.6])
    for place in axes[0, 1:samples]:
        place.axis("off")

    plain = classifier.plain(images)[0]
    _image(axes[0, 0], shown[0])
    _top_two(axes[0, 0], plain.exp(), classes, truth)
    axes[0, 0].set_title("the image", fontsize=9)
    _bars(axes[0, -1], plain, classes, truth, "log-probability")
    for line, text in ((0, "plain: one pass of the image itself"), (1, "APAC: many passes, each of a virtual sample")):
        label = axes[line, 0].text(0, 1.32, text, transform=axes[line, 0].transAxes, fontsize=11)
        label.set_in_layout(False)

    for m in range(samples):
        theta = classifier.deformation.sample(1, shape, generator=generator(classifier.seed, "pass", m))
        _image(axes[1, m], classifier.deformation.apply(shown, theta)[0])
        said = classifier.plain(classifier.deformation.apply(images, theta))[0]
        _top_two(axes[1, m], said.exp(), classes, truth)
        axes[1, m].set_title(f"pass {m + 1}", fontsize=9)
    decision = classifier.decide(images)
    title = f"mean log-probability of {int(decision.passes[0]):,} passes"
    _bars(axes[1, -1], decision.log_scores[0], classes, truth, title)
    return _png(figure)


def first_layer_weights(networks: Sequence[tuple[str, nn.Module]], image_shape: tuple[int, int, int]) -> bytes | None:
    """Weight maps of the first layer of an MLP, a panel for each (title, network); None for a network without them."""
    layers = [
        (title, next(m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)))
        for title, network in networks
    ]
    if any(isinstance(layer, nn.Conv2d) for _, layer in layers):
        return None
    side = 8
    figure = Figure(figsize=(5.2 * len(layers), 5.4), layout="constrained")
    axes = figure.subplots(1, len(layers), squeeze=False)[0]
    for place, (title, layer) in zip(axes, layers, strict=True):
        maps = layer.weight.detach().view(-1, *image_shape)
        chosen = maps[torch.randperm(len(maps), generator=generator(0, "figure", 1))[: side * side]]
        reach = chosen.abs().amax(dim=(1, 2, 3), keepdim=True)
        tiles = torch.nn.functional.pad((chosen / reach + 1) / 2, (1, 1, 1, 1), value=1.0)
        channels, height, width = tiles.shape[1:]
        tiles = tiles.view(side, side, channels, height, width).permute(2, 0, 3, 1, 4)
        _image(place, tiles.reshape(channels, side * height, side * width))
        place.set_title(title, fontsize=10)
    return _png(figure)


def _passes_axis(axes: Any) -> None:
    axes.set_xscale("log", base=4)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.spines[["top", "right"]].set_visible(False)


def _image(axes: Any, image: Tensor) -> None:
    """One image (C, H, W) in [0, 1], grey or colour, without ticks."""
    pixels = image.clamp(0, 1).permute(1, 2, 0).numpy()
    axes.imshow(pixels[..., 0] if pixels.shape[-1] == 1 else pixels, cmap="gray", vmin=0, vmax=1)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _top_two(axes: Any, shares: Tensor, classes: Sequence[str], truth: int) -> None:
    """Bars of the two most probable classes beside an image, as high as it is for probability 1; blue is the truth."""
    inset = axes.inset_axes((1.04, 0.0, 0.3, 1.0))
    values, best = shares.topk(2)
    inset.bar([0, 1], values.tolist(), color=[APAC if int(c) == truth else PLAIN for c in best])
    inset.set(ylim=(0, 1), xlim=(-0.6, 1.6), yticks=[], xticks=[0, 1])
    inset.set_xticklabels([classes[int(c)] for c in best], fontsize=7)
    inset.tick_params(length=0, pad=1)
    inset.spines[:].set(color="#bbbbbb", linewidth=0.6)


def _bars(axes: Any, log_scores: Tensor, classes: Sequence[str], truth: int, title: str) -> None:
    best = int(log_scores.argmax())
    colours = [APAC if c == truth else PLAIN if c == best else "#cccccc" for c in range(len(classes))]
    axes.bar(range(len(classes)), log_scores.tolist(), color=colours)
    axes.set_title(f"{title}: {classes[best]}", fontsize=8, color=APAC if best == truth else PLAIN)
    axes.set_xticks(range(len(classes)), classes, fontsize=8)
    axes.tick_params(axis="y", labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def _png(figure: Figure) -> bytes:
    FigureCanvasAgg(figure)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150, bbox_inches="tight", pad_inches=0.08)
    return file.getvalue()
