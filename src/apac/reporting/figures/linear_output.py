"""The linear output space (paper, Analysis): the logits of two classes for the virtual samples of an image."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from apac.classify.classifier import Classifier
from apac.inference.engine import evaluating
from apac.reporting.figures.canvas import blank, png, show_image
from apac.reporting.figures.images import virtual_sample

FIRST, SECOND, VIRTUAL = "#5ab4d6", "#8e5bbf", "#d6312b"
SAMPLES = 1000


def linear_output(
    images: Tensor, labels: Tensor, classifier: Classifier, index: int, shown: Tensor, classes: Sequence[str]
) -> bytes:
    """Draw the logits of two classes for the test images of both and for virtual samples of the image at `index`.

    The classes are the true class, on the y-axis, and the best of the others. `images` (N, C, H, W) are the network
    inputs, `shown` (C, H, W) is the image in [0, 1].
    """
    truth = int(labels[index])
    image = images[index : index + 1]
    other = next(c for c in classifier.plain(image)[0].argsort(descending=True).tolist() if c != truth)
    virtual = _logits(classifier, torch.cat([virtual_sample(classifier, image, m) for m in range(SAMPLES)]))
    pairs, plain = virtual[:, [other, truth]], _logits(classifier, image)[0, [other, truth]]
    favor = int((pairs[:, 1] > pairs[:, 0]).sum())

    figure = blank(10.4, 5.9)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    points_of = {label: _logits(classifier, images[labels == label]) for label in (other, truth)}
    all_points = torch.cat([*(points[:, [other, truth]] for points in points_of.values()), pairs])
    limits = (float(all_points.min()) - 1, float(all_points.max()) + 1)
    for axes in panels:
        for label, color in ((other, FIRST), (truth, SECOND)):
            points = points_of[label]
            name = f"class {classes[label]}"
            axes.scatter(points[:, other], points[:, truth], s=5, color=color, alpha=0.5, label=name)
        axes.axline((0, 0), slope=1, linestyle=":", color="#8a8a8a")  # equal logits
        axes.set(xlabel=f"output of class {classes[other]}", xlim=limits, ylim=limits, aspect="equal")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(f"output of class {classes[truth]}")
    panels[1].scatter(pairs[:, 0], pairs[:, 1], s=5, color=VIRTUAL, alpha=0.5, label="virtual samples")
    for axes in panels:
        axes.plot(*plain.tolist(), "o", color=VIRTUAL, markeredgecolor="black", label="the image")
    handles, names = panels[1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=9, markerscale=1.5)
    show_image(panels[0].inset_axes((0.74, 0.74, 0.26, 0.26)), shown)
    panels[0].set_title("undeformed test images", fontsize=9)
    panels[1].set_title(f"{favor:,} of {SAMPLES:,} virtual samples favor the true class", fontsize=9)
    return png(figure)


def _logits(classifier: Classifier, images: Tensor) -> Tensor:
    with evaluating(classifier.network):
        return torch.cat([classifier.network(batch) for batch in images.split(500)])
