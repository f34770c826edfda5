"""Figures of images: deformed samples, misclassified ones, how one is decided, weight maps. Each as PNG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from apac.classify.classifier import Classifier
from apac.deform.base import Deformation
from apac.evaluation.fixed import Evaluation
from apac.randomness import generator
from apac.reporting.figures.canvas import APAC, PLAIN, bars, blank, png, show_image, top_two, words

MOST = 96  # misclassified images in a figure: all of MNIST's


def deformed_samples(images: Tensor, labels: Tensor, deformation: Deformation, *, seed: int = 0) -> bytes:
    """Each row an original and its virtual samples. Images (n, C, H, W) in [0, 1], not whitened, for visibility."""
    columns = 9
    figure = blank(columns * 0.8 + 0.3, len(images) * 0.8 + 0.3)
    axes = figure.subplots(len(images), columns, squeeze=False)
    originals, their_labels = (rows.repeat_interleave(columns - 1, dim=0) for rows in (images, labels))
    virtual = deformation(originals, generator=generator(seed, "figure", 0), labels=their_labels)
    for row, image in enumerate(images):
        for column, shown in enumerate([image, *virtual[row * (columns - 1) : (row + 1) * (columns - 1)]]):
            show_image(axes[row, column], shown)
        for side in axes[row, 0].spines.values():
            side.set(visible=True, color=PLAIN, linewidth=2)
    axes[0, 0].set_title("original", fontsize=8, color=PLAIN)
    axes[0, 1].set_title("virtual samples", fontsize=8, loc="left", color=APAC)
    return png(figure)


def misclassified(images: Tensor, labels: Tensor, evaluation: Evaluation, classes: Sequence[str]) -> bytes:
    """Images (N, C, H, W) in [0, 1] that APAC gets wrong: the truth at the top left, bars of the two best classes."""
    assert evaluation.scores is not None
    shown = evaluation.wrong[:MOST]
    columns = min(8, max(1, len(shown)))
    lines = max(1, math.ceil(len(shown) / columns))
    figure = blank(columns * 1.25, lines + 0.1)
    axes = figure.subplots(lines, columns, squeeze=False)
    for place in axes.flat:
        place.axis("off")
    # What the rule ranks, as probabilities: the normalized geometric mean of the softmaxes.
    shares = evaluation.scores.log_mean.softmax(dim=1)
    for place, index in zip(axes.flat, shown, strict=False):
        truth = int(labels[index])
        place.axis("on")
        show_image(place, images[index])
        size = 11 if len(classes[truth]) <= 2 else 8
        words(place, 0.04, 0.96, classes[truth], transform=place.transAxes, va="top", color="#ffd34d", fontsize=size)
        top_two(place, shares[index], classes, truth)
    if not shown:
        axes[0, 0].text(0.5, 0.5, "none", ha="center")
    return png(figure)


def corrected(
    images: Tensor, truth: int, classifier: Classifier, means: Tensor, shown: Tensor, classes: Sequence[str]
) -> bytes:
    """How one image is decided, images (1, C, H, W) as the network takes them and `shown` (1, C, H, W) in [0, 1]:
    the plain prediction above; virtual samples, what the network says of each, and `means` (K,), the mean
    log-probabilities of many passes, below."""
    samples = 6
    figure = blank(11, 3.9)
    axes = figure.subplots(2, samples + 1, width_ratios=[1] * samples + [2.6])
    for place in axes[0, 1:samples]:
        place.axis("off")

    plain = classifier.plain(images)[0]
    show_image(axes[0, 0], shown[0])
    top_two(axes[0, 0], plain.exp(), classes, truth)
    axes[0, 0].set_title("the image", fontsize=9)
    bars(axes[0, -1], plain, classes, truth, "log-probability")
    for line, text in ((0, "plain: one pass of the image itself"), (1, "APAC: many passes, each of a virtual sample")):
        label = axes[line, 0].text(0, 1.32, text, transform=axes[line, 0].transAxes, fontsize=11)
        label.set_in_layout(False)

    for m in range(samples):
        show_image(axes[1, m], virtual_sample(classifier, shown, m)[0])
        said = classifier.plain(virtual_sample(classifier, images, m))[0]
        top_two(axes[1, m], said.exp(), classes, truth)
        axes[1, m].set_title(f"pass {m + 1}", fontsize=9)
    bars(axes[1, -1], means, classes, truth, "mean log-probability")
    return png(figure)


def virtual_sample(classifier: Classifier, images: Tensor, number: int) -> Tensor:
    """Images (N, C, H, W) as they are in a pass of the classifier."""
    deformation, (channels, height, width) = classifier.deformation, images.shape[1:]
    random = generator(classifier.seed, "pass", number)
    return deformation.apply(images, deformation.sample(1, (channels, height, width), generator=random))


def first_layer_weights(networks: Mapping[str, nn.Module], image_shape: tuple[int, int, int]) -> bytes | None:
    """Weight maps of the first layer of an MLP, a panel for each network by title; None for a network without them."""
    layers = [
        (title, next(m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)))
        for title, network in networks.items()
    ]
    if any(isinstance(layer, nn.Conv2d) for _, layer in layers):
        return None
    side = 8
    figure = blank(5.2 * len(layers), 5.4)
    axes = figure.subplots(1, len(layers), squeeze=False)[0]
    for place, (title, layer) in zip(axes, layers, strict=True):
        maps = layer.weight.detach().view(-1, *image_shape)
        chosen = maps[torch.randperm(len(maps), generator=generator(0, "figure", 1))[: side * side]]
        reach = chosen.abs().amax(dim=(1, 2, 3), keepdim=True)
        tiles = torch.nn.functional.pad((chosen / reach + 1) / 2, (1, 1, 1, 1), value=1.0)
        channels, height, width = tiles.shape[1:]
        tiles = tiles.view(side, side, channels, height, width).permute(2, 0, 3, 1, 4)
        show_image(place, tiles.reshape(channels, side * height, side * width))
        place.set_title(title, fontsize=10)
    return png(figure)
