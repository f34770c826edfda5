"""Figures of images: virtual samples, misclassified images, weight maps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from apac.classify.classifier import Classifier
from apac.deform.base import Deformation
from apac.evaluation.fixed import Evaluation
from apac.randomness import generator
from apac.reporting.figures.canvas import APAC, PLAIN, blank, outlined_text, png, show_image, top_two

MAX_SHOWN = 96  # maximum number of misclassified images in a figure; enough for MNIST


def deformed_samples(
    images: Tensor,
    labels: Tensor | None,
    deformation: Deformation,
    *,
    names: Sequence[str] | None = None,
    title: str = "",
    seed: int = 0,
) -> bytes:
    """Draw images (n, C, H, W) in [0, 1], not whitened, and their virtual samples, one row per image.

    `names` (n) are written to the left of the rows.
    """
    columns = 9
    side = 0.8 if images.shape[-1] <= 128 else 1.2  # inches
    figure = blank(columns * side + 0.3, len(images) * side + 0.3)
    axes = figure.subplots(len(images), columns, squeeze=False)
    originals = images.repeat_interleave(columns - 1, dim=0)
    repeated_labels = None if labels is None else labels.repeat_interleave(columns - 1, dim=0)
    virtual = deformation(originals, generator=generator(seed, "figure", 0), labels=repeated_labels)
    for row, image in enumerate(images):
        for column, shown in enumerate([image, *virtual[row * (columns - 1) : (row + 1) * (columns - 1)]]):
            show_image(axes[row, column], shown)
        for edge in axes[row, 0].spines.values():
            edge.set(visible=True, color=PLAIN, linewidth=2)
        if names is not None:
            name = names[row] if len(names[row]) <= 24 else f"…{names[row][-23:]}"
            axes[row, 0].set_ylabel(name, rotation="horizontal", ha="right", va="center", fontsize=8)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=9)
    axes[0, 0].set_title("original", fontsize=8, color=PLAIN)
    axes[0, 1].set_title("virtual samples", fontsize=8, loc="left", color=APAC)
    return png(figure)


def misclassified(images: Tensor, labels: Tensor, evaluation: Evaluation, classes: Sequence[str]) -> bytes:
    """Draw the images (N, C, H, W) in [0, 1] that APAC misclassifies, with the true class and the top 2 classes."""
    assert evaluation.scores is not None
    shown = evaluation.wrong[:MAX_SHOWN]
    columns = min(8, max(1, len(shown)))
    rows = max(1, math.ceil(len(shown) / columns))
    figure = blank(columns * 1.25, rows + 0.1)
    axes = figure.subplots(rows, columns, squeeze=False)
    for panel in axes.flat:
        panel.axis("off")
    # The scores as probabilities: the normalized geometric mean of the softmaxes.
    probabilities = evaluation.scores.log_mean.softmax(dim=1)
    for panel, index in zip(axes.flat, shown, strict=False):
        truth = int(labels[index])
        panel.axis("on")
        show_image(panel, images[index])
        size = 11 if len(classes[truth]) <= 2 else 8
        style = {"transform": panel.transAxes, "va": "top", "color": "#ffd34d", "fontsize": size}
        outlined_text(panel, 0.04, 0.96, classes[truth], **style)
        top_two(panel, probabilities[index], classes, truth)
    if not shown:
        axes[0, 0].text(0.5, 0.5, "none", ha="center")
    return png(figure)


def virtual_sample(classifier: Classifier, images: Tensor, number: int) -> Tensor:
    """Return the virtual samples of images (N, C, H, W) in pass `number` of the classifier."""
    deformation, (channels, height, width) = classifier.deformation, images.shape[1:]
    random = generator(classifier.seed, "pass", number)
    return deformation.apply(images, deformation.sample(1, (channels, height, width), generator=random))


def first_layer_weights(networks: Mapping[str, nn.Module], image_shape: tuple[int, int, int]) -> bytes | None:
    """Draw first-layer weight maps of MLPs, one panel per network; return None for convolutional networks."""
    layers = [
        (title, next(m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)))
        for title, network in networks.items()
    ]
    if any(isinstance(layer, nn.Conv2d) for _, layer in layers):
        return None
    side = 8
    figure = blank(5.2 * len(layers), 5.4)
    axes = figure.subplots(1, len(layers), squeeze=False)[0]
    for panel, (title, layer) in zip(axes, layers, strict=True):
        maps = layer.weight.detach().view(-1, *image_shape)
        selected = maps[torch.randperm(len(maps), generator=generator(0, "figure", 1))[: side * side]]
        largest = selected.abs().amax(dim=(1, 2, 3), keepdim=True)
        tiles = torch.nn.functional.pad((selected / largest + 1) / 2, (1, 1, 1, 1), value=1.0)
        channels, height, width = tiles.shape[1:]
        tiles = tiles.view(side, side, channels, height, width).permute(2, 0, 3, 1, 4)
        show_image(panel, tiles.reshape(channels, side * height, side * width))
        panel.set_title(title, fontsize=10)
    return png(figure)
