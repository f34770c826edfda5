"""Elements of the figures: colors, images, bars, axes and PNG output. The only module that imports matplotlib."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from apac.errors import missing

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patheffects import withStroke
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator
except ImportError as error:
    raise missing("matplotlib", "paper") from error

APAC, SUM, PLAIN, ORIGINAL = "#1f5fa8", "#7aa6d6", "#c1571d", "#8a8a8a"
DPI = 150
NETWORKS = ("#1f5fa8", "#2f8f5b", "#8a4fa3", "#b8860b")  # one per network


def blank(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, which places its subplots."""
    return Figure(figsize=(width, height), layout="constrained")


def free(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, for axes at given positions."""
    return Figure(figsize=(width, height))


def passes_axis(axes: Any) -> None:
    """Format the x-axis as a number of passes."""
    axes.set_xscale("log", base=4)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.spines[["top", "right"]].set_visible(False)


def error_axis(axes: Any, errors: Sequence[float]) -> None:
    """Format the y-axis as test error in percent, logarithmic because the error of one pass is much larger."""
    axes.set_ylabel("test error (%)")
    axes.grid(axis="y", alpha=0.3)
    if min(errors) > 0:
        axes.set_yscale("log")
        wide = max(errors) > 5 * min(errors)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5) if wide else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter("{x:g}")


def show_image(axes: Any, image: Tensor, *, interpolation: str = "auto") -> None:
    """Draw one image (C, H, W) in [0, 1], gray or color, without ticks."""
    pixels = image.clamp(0, 1).permute(1, 2, 0).numpy()
    gray_or_color = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    axes.imshow(gray_or_color, cmap="gray", vmin=0, vmax=1, interpolation=interpolation)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def top_two(axes: Any, probabilities: Tensor, classes: Sequence[str], truth: int) -> None:
    """Draw bars of the two most probable classes next to an image; blue is the true class."""
    inset = axes.inset_axes((1.04, 0.0, 0.3, 1.0))
    values, best = probabilities.topk(2)
    inset.bar([0, 1], values.tolist(), color=[APAC if int(c) == truth else PLAIN for c in best])
    inset.set(ylim=(0, 1), xlim=(-0.6, 1.6), yticks=[], xticks=[0, 1])
    names = [classes[int(c)] for c in best]
    if max(map(len, names)) <= 2:
        inset.set_xticklabels(names, fontsize=7)
    else:  # names too long to fit below the bars
        inset.set_xticks([])
        for x, name in enumerate(names):
            outlined_text(inset, x, 0.04, name, ha="center", va="bottom", rotation=90, fontsize=7, color="black")
    inset.tick_params(length=0, pad=1)
    inset.spines[:].set(color="#bbbbbb", linewidth=0.6)


def outlined_text(axes: Any, x: float, y: float, text: str, **style: Any) -> None:
    """Draw text with an outline, so that it is legible on any image."""
    outline = "white" if style["color"] == "black" else "black"
    axes.text(x, y, text, path_effects=[withStroke(linewidth=1.8, foreground=outline)], **style)


def png(figure: Figure) -> bytes:
    """Render a figure as PNG."""
    FigureCanvasAgg(figure)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # drawn as a box
        figure.savefig(file, format="png", dpi=DPI, bbox_inches="tight", pad_inches=0.08)
    return file.getvalue()
