"""The confusion matrix as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from apac.reporting.figures.canvas import blank, png

MAX_NUMBERED = 25  # classes; the counts of more do not fit into the cells
CELL = 0.34  # inches, for cells with counts
MAX_SIDE = 13.0  # inches
MAX_NAME = 24  # letters of a class name
MIN_FONT = 3.0  # points; smaller names are left out


def confusion_matrix(counts: Tensor, classes: Sequence[str], title: str) -> bytes:
    """Draw the number of images of each class (rows) by the prediction (columns), (K, K).

    The color is the share of the row, blue on the diagonal and orange elsewhere; its square root makes rare errors
    visible. Classes without images and predictions are left out.
    """
    shown = ((counts.sum(0) + counts.sum(1)) > 0).nonzero()[:, 0]
    counts = counts[shown][:, shown]
    names = [_short(classes[i]) for i in shown.tolist()]
    size = len(names)
    shares = counts.double() / counts.sum(dim=1, keepdim=True).clamp(min=1)
    diagonal = torch.eye(size, dtype=torch.bool)

    numbered = size <= MAX_NUMBERED
    side = min(MAX_SIDE, max(2.0, CELL * size * (1 if numbered else 0.45)))
    font = min(9.0, 72 * side / size * 0.75)  # points; 72 in an inch
    figure = blank(side + 1.5, side + 1.8)
    axes = figure.subplots()
    for mask, colors in ((diagonal, "Blues"), (~diagonal, "Oranges")):
        visible = shares.sqrt().masked_fill(~mask | (counts == 0), torch.nan)
        axes.imshow(visible.numpy(), cmap=colors, vmin=0, vmax=1.3)
    if numbered:
        longest = len(f"{int(counts.max())}")
        for row, column in counts.nonzero().tolist():
            text = f"{int(counts[row, column])}"
            style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": min(font, 72 * side / size / longest)}
            axes.text(column, row, text, color="white" if shares[row, column] > 0.6 else "black", **style)
    ticks = range(size) if font >= MIN_FONT else []
    labels = names if font >= MIN_FONT else []
    rotation = 0 if max(map(len, names)) <= 2 else 90
    axes.set_xticks(ticks, labels, fontsize=font, rotation=rotation, parse_math=False)
    axes.set_yticks(ticks, labels, fontsize=font, parse_math=False)
    between = [line - 0.5 for line in range(1, size)]
    for draw in (axes.hlines, axes.vlines):
        draw(between, -0.5, size - 0.5, color="#dddddd", linewidth=0.4)
    axes.tick_params(length=0)
    axes.spines[:].set(color="#bbbbbb")
    axes.set_xlabel("prediction")
    axes.set_ylabel("class")
    axes.set_title(title, fontsize=10)
    return png(figure)


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"
