"""A corrected image: the plain prediction, the virtual samples with their predictions, and the decision of APAC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apac.classify.classifier import Classifier
from apac.reporting.figures.canvas import APAC, PLAIN, free, png, show_image
from apac.reporting.figures.images import virtual_sample

COLUMNS, ROWS = 8, 2  # of virtual samples
SHOWN_CLASSES = 4
OTHER, SOFT = "#c4c9cf", "#555555"
WIDTH, HEIGHT = 9.6, 4.48  # inches, as are all positions below


@dataclass(frozen=True, eq=False)
class Corrected:
    """An image that the plain prediction gets wrong and APAC gets right."""

    pixels: Tensor  # (1, C, H, W) in 0 … 1
    inputs: Tensor  # (1, C, H, W), what the classifier takes
    truth: int
    plain: Tensor  # (K,) probabilities of the plain prediction
    apac: Tensor  # (K,) probabilities of APAC
    passes: int
    classes: tuple[str, ...]


def most_improved(
    indices: Sequence[int],
    labels: Tensor,
    pixels: Tensor,
    inputs: Tensor,
    plain: Tensor,
    apac: Tensor,
    *,
    passes: int,
    classes: tuple[str, ...],
) -> Corrected:
    """Return the image among the corrected `indices` whose true class gains the most probability.

    `pixels` and `inputs` (N, C, H, W) are the images as uint8 and as the classifier takes them, `plain` and `apac`
    (N, K) the probabilities before and after.
    """
    rise = (apac - plain).gather(1, labels[:, None])[:, 0]
    best = max(indices, key=lambda index: float(rise[index]))
    one = slice(best, best + 1)
    shown = pixels[one].float() / 255
    return Corrected(shown, inputs[one], int(labels[best]), plain[best], apac[best], passes, classes)


def title(image: Corrected) -> str:
    """Return what the figure shows, in one sentence."""
    wrong, right = (image.classes[int(part.argmax())] for part in (image.plain, image.apac))
    return (
        f"One pass: “{wrong}”. The mean of {image.passes:,} passes of randomly deformed copies: “{right}”, the truth."
    )


def corrected(image: Corrected, classifier: Classifier) -> bytes:
    """Draw the image and its plain prediction above, its virtual samples and the decision of APAC below."""
    figure = free(WIDTH, HEIGHT)
    _text(figure, 0.0, 4.33, title(image), fontsize=12.5, weight="bold")
    ranked = torch.maximum(image.plain, image.apac).argsort(descending=True).tolist()
    shown = [image.truth, *(c for c in ranked if c != image.truth)][:SHOWN_CLASSES]

    _heading(figure, 3.9, "Plain", "one pass of the image itself")
    show_image(_panel(figure, 0.0, 2.28, 1.5, 1.5), image.pixels[0], interpolation="bicubic")
    _arrow(figure, 1.7, 6.15, 3.03)
    _bars(figure, 2.28, image.plain, shown, image)

    _heading(figure, 1.86, "APAC", f"{image.passes:,} passes, each of a randomly deformed copy; their mean decides")
    side, gap = 0.66, 0.07
    for number in range(min(ROWS * COLUMNS, image.passes)):
        row, column = divmod(number, COLUMNS)
        panel = _panel(figure, column * (side + gap), 1.08 - row * (side + 0.27), side, side)
        show_image(panel, virtual_sample(classifier, image.pixels, number)[0], interpolation="bicubic")
        label = int(classifier.plain(virtual_sample(classifier, image.inputs, number))[0].argmax())
        color = APAC if label == image.truth else PLAIN
        panel.set_xlabel(image.classes[label], fontsize=9, color=color, labelpad=2)
    _arrow(figure, 5.92, 6.15, 0.88)
    _bars(figure, 0.13, image.apac, shown, image)
    return png(figure)


def _panel(figure: Any, left: float, bottom: float, width: float, height: float) -> Any:
    return figure.add_axes((left / WIDTH, bottom / HEIGHT, width / WIDTH, height / HEIGHT))


def _text(figure: Any, left: float, bottom: float, text: str, **style: Any) -> None:
    figure.text(left / WIDTH, bottom / HEIGHT, text, **style)


def _heading(figure: Any, bottom: float, rule: str, description: str) -> None:
    _text(figure, 0.0, bottom, rule, fontsize=11, weight="bold")
    _text(figure, 0.62, bottom, description, fontsize=11, color=SOFT)


def _arrow(figure: Any, start: float, stop: float, height: float) -> None:
    axes = _panel(figure, 0.0, 0.0, WIDTH, HEIGHT)
    axes.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
    axes.axis("off")
    style = {"arrowstyle": "-|>", "color": OTHER, "linewidth": 2, "mutation_scale": 16}
    axes.annotate("", (stop, height), (start, height), arrowprops=style)


def _bars(figure: Any, bottom: float, probabilities: Tensor, shown: Sequence[int], image: Corrected) -> None:
    """Draw the probabilities of the shown classes; blue is the true class, orange a wrong decision."""
    best = int(probabilities.argmax())
    right = best == image.truth
    verdict = f"“{image.classes[best]}”, {'right ✓' if right else 'wrong ✗'}"
    _text(figure, 6.35, bottom + 1.62, verdict, fontsize=13, weight="bold", color=APAC if right else PLAIN)

    axes = _panel(figure, 7.0, bottom, 2.1, 1.5)
    values = [100 * float(probabilities[c]) for c in shown]
    colors = [APAC if c == image.truth else PLAIN if c == best else OTHER for c in shown]
    places = range(len(shown))
    axes.barh(places, values, color=colors, height=0.72)
    for place, value, c in zip(places, values, shown, strict=True):
        text = "> 99 %" if value > 99 else "< 1 %" if value < 1 else f"{value:.0f} %"
        axes.text(value + 2, place, text, va="center", fontsize=9, weight="bold" if c == best else "normal")
    axes.set_yticks(places, [image.classes[c] for c in shown], fontsize=10)
    for label, color, c in zip(axes.get_yticklabels(), colors, shown, strict=True):
        label.set(color="black" if color == OTHER else color, weight="bold" if c == best else "normal")
    axes.invert_yaxis()
    axes.set(xlim=(0, 100), xticks=[])
    axes.tick_params(length=0)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.spines["left"].set_color(OTHER)
