"""Figures are drawn for all inputs and show the right numbers."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import apac
from apac import models
from apac.evaluation.fixed import Row, evaluate
from apac.randomness import generator
from apac.reporting.figures import confusion, curves, linear_output
from apac.reporting.figures import images as pictures
from decisions import make_decision
from evaluations import DECISIONS, certified, evaluation

PER_CLASS = apac.PerClass({1: apac.Compose()}, default=apac.Flip(), classes=10)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_figures_are_drawn_for_gray_and_color_images_with_and_without_errors(shape, random, monkeypatch):
    monkeypatch.setattr(linear_output, "SAMPLES", 20)
    images = torch.rand(12, *shape, generator=random)
    labels = torch.arange(12) % 10
    network = nn.Sequential(nn.Flatten(), nn.Linear(images[0].numel(), 64), nn.ReLU(), nn.Linear(64, 10)).eval()
    classifier = apac.Classifier(network, apac.Homography(), apac.FixedPasses(3))
    result = evaluate(classifier, images, labels, (1, 3))
    correct = evaluate(classifier, images, classifier.decide(images).labels, (3,))
    assert correct.wrong == ()
    assert result.scores is not None
    classes = [f"class {c}" for c in range(10)]
    drawn = [
        pictures.deformed_samples(images[:2], labels[:2], apac.presets.cifar10()),
        pictures.deformed_samples(images[:2], labels[:2], PER_CLASS),
        linear_output.linear_output(images, labels, classifier, 5, images[5], classes),
        curves.networks_against_m({"a": result, "b": correct}),
        curves.error_against_m(result, result),
        pictures.misclassified(images, labels, result, classes),
        pictures.misclassified(images, labels, correct, classes),
        pictures.first_layer_weights({"a": network, "b": network}, shape),
    ]
    for picture in drawn:
        assert picture is not None
        assert_drawn(picture)


def test_a_convolutional_network_has_no_weight_maps_to_draw():
    network = models.build("mnist-cnn", generator=generator(0, "test", 0))
    assert pictures.first_layer_weights({"cnn": network}, (1, 28, 28)) is None


def assert_drawn(picture: bytes) -> None:
    with Image.open(io.BytesIO(picture)) as image:
        assert image.format == "PNG"
        assert min(image.size) > 30
        assert np.asarray(image.convert("L")).std() > 1


# With counts and names, with names alone, with neither.
@pytest.mark.parametrize("size", [2, 30, 400])
def test_a_confusion_matrix_is_drawn_for_any_number_of_classes(size):
    counts = torch.eye(size, dtype=torch.int64) * 9
    counts[0, 1] = 3
    assert_drawn(confusion.confusion_matrix(counts, [f"class {c} of $x$" for c in range(size)], "title"))


def test_a_confusion_matrix_shows_the_counts_of_the_classes_that_occur(monkeypatch):
    monkeypatch.setattr(confusion, "png", lambda figure: figure)
    counts = torch.tensor([[5, 0, 2], [0, 0, 0], [0, 0, 0]])
    figure: Any = confusion.confusion_matrix(counts, ["cat", "unused", "dog"], "title")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog"]
    assert {(text.get_position(), text.get_text()) for text in axes.texts} == {((0, 0), "5"), ((1, 0), "2")}


@pytest.mark.parametrize(
    "name",
    DECISIONS,
)
def test_passes_are_drawn_against_any_margins(name):
    decision = DECISIONS[name]
    assert_drawn(curves.passes_against_margin(decision, torch.zeros(len(decision.stopped), dtype=torch.long)))


@pytest.mark.parametrize("name", [name for name in DECISIONS if "margin" not in name])
def test_the_certified_rule_is_drawn_for_any_passes(name):
    result = certified(DECISIONS[name], wrong=0.0)
    assert_drawn(curves.certified([result], evaluation(0.0, Row(1, 0.0, 0.0, 0.0))))


@pytest.fixture
def as_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return figures instead of PNG."""
    monkeypatch.setattr(curves, "png", lambda figure: figure)
    monkeypatch.setattr(linear_output, "png", lambda figure: figure)


def legend(figure) -> dict[str, int]:
    texts = (text.get_text().rpartition(": ") for text in figure.axes[0].get_legend().get_texts())
    return {text: int(count) for text, _, count in texts}


def test_the_legend_counts_correct_wrong_and_uncertified_images(as_figures):
    decision = make_decision(["certified"] * 4 + ["limit"] * 2, labels=[0, 0, 0, 1, 1, 0], passes=[32] * 4 + [64] * 2)
    assert legend(curves.passes_against_margin(decision, torch.zeros(6, dtype=torch.long))) == {
        "settled, right": 3,
        "settled, wrong": 1,
        "not settled at the limit": 2,
    }


def test_an_undecided_image_does_not_count_as_certified(as_figures):
    counts = legend(curves.passes_against_margin(DECISIONS["one not decided"], torch.zeros(3, dtype=torch.long)))
    assert sum(count for text, count in counts.items() if text.startswith("settled")) == 1


@pytest.mark.parametrize(("combine", "score"), [("product", "log-probability"), ("sum", "probability")])
def test_the_axis_names_the_score_that_ranks_the_classes(as_figures, combine, score):
    figure: Any = curves.passes_against_margin(make_decision(["certified"], combine=combine), torch.tensor([0]))
    assert figure.axes[0].get_xlabel() == f"margin: mean {score} of the label minus that of the runner-up"


def test_the_virtual_samples_are_those_of_the_first_passes(as_figures, random):
    images, labels = torch.rand(30, 1, 6, 6, generator=random), torch.arange(30) % 3
    weights = torch.randn(36, 3, generator=random)
    classifier = apac.Classifier(lambda x: x.flatten(1) @ weights, apac.Homography(), apac.FixedPasses(8), seed=4)
    logits = images.flatten(1) @ weights
    index = int((logits.argmax(1) != labels).nonzero()[0])
    truth, other = int(labels[index]), int(logits[index].argmax())
    figure: Any = linear_output.linear_output(images, labels, classifier, index, images[index], "abc")
    left, right = figure.axes[:2]
    points = {c.get_label(): c.get_offsets().data for c in right.collections}
    np.testing.assert_allclose(points[f"class {'abc'[other]}"], logits[labels == other][:, [other, truth]], rtol=1e-4)
    np.testing.assert_allclose(points[f"class {'abc'[truth]}"], logits[labels == truth][:, [other, truth]], rtol=1e-4)
    parameters = apac.Homography().sample(1, (1, 6, 6), generator=generator(4, "pass", 7))
    seventh = apac.Homography().apply(images[index : index + 1], parameters).flatten(1) @ weights
    virtual = points["virtual samples"]
    assert len(virtual) == 1000
    np.testing.assert_allclose(virtual[7], seventh[0, [other, truth]], rtol=1e-4)
    favor = int((virtual[:, 1] > virtual[:, 0]).sum())
    assert right.get_title() == f"{favor:,} of 1,000 virtual samples favor the true class"
    assert (left.get_xlabel(), left.get_ylabel()) == (
        f"output of class {'abc'[other]}",
        f"output of class {'abc'[truth]}",
    )


def test_every_image_is_in_one_bar_of_the_histogram(as_figures):
    passes = [16, 16, 32, 48, 80, 1040, 1040, 9999, 16384]
    strict = certified(make_decision(["certified"] * 8 + ["limit"], passes=passes), error=0.001, wrong=0.01)
    loose = certified(make_decision(["certified"] * 9, passes=16), error=0.1, wrong=0.03)
    figure: Any = curves.certified([loose, strict], evaluation(0.05, Row(1, 0.2, 0.2, 0.1), Row(64, 0.02, 0.02, 0.01)))
    left, right = figure.axes
    bars = [(bar.get_x(), bar.get_x() + bar.get_width(), bar.get_height()) for bar in left.patches]
    assert [height for _, _, height in bars] == [sum(low <= p < high for p in passes) for low, high, _ in bars]
    assert sum(height for _, _, height in bars) == len(passes)
    assert left.get_title() == f"error 0.001: mean {np.mean(passes):.0f}, median 80"
    lines = {line.get_label(): line.get_xydata().tolist() for line in right.get_lines()}
    assert lines["fixed M"] == [[1.0, 20.0], [64.0, 2.0]]
    assert lines["certified"] == [[16.0, 3.0], [pytest.approx(np.mean(passes)), 1.0]]
    assert [text.get_text() for text in right.texts] == ["0.1", "0.001"]
