"""Recipes, table and figures."""

from __future__ import annotations

import io
from dataclasses import fields

import numpy as np
import pytest
import torch
from PIL import Image

import apac
from apac import models
from apac.evaluate import Evaluation, Row, evaluate
from apac.paper import figures, recipes, report, table
from apac.randomness import generator


def evaluation(plain: float, *rows: Row) -> Evaluation:
    return Evaluation(1000, 0, plain, 0.001, rows, (1, 2), (3,), (), 1.0, None)


@pytest.mark.parametrize("recipe", recipes.RECIPES.values(), ids=lambda recipe: recipe.name)
def test_the_two_trainings_of_a_recipe_differ_in_the_deformation_alone(recipe):
    differing = {
        field.name
        for field in fields(recipe.deformed)
        if getattr(recipe.deformed, field.name) != getattr(recipe.original, field.name)
    }
    assert differing == {"deformation"}
    assert recipe.deformed.deformation == apac.presets.mnist()
    assert recipe.original.deformation == apac.Compose()


def test_the_summary_is_in_the_papers_order_with_its_numbers_beside():
    deformed = evaluation(0.0105, Row(1, 0.03, 0.03, 0.01), Row(16384, 0.0023, 0.0024, 0.0001))
    summary = table.summary(deformed, evaluation(0.022), recipes.PAPER_TABLE["mnist-cnn"])
    assert [row[2:] for row in summary.rows] == [
        ("2.20 % ± 0.46", "0.69 %"),
        ("1.05 % ± 0.32", "0.39 %"),
        ("0.23 % ± 0.15", "0.23 %"),
    ]
    assert summary.rows[2][1] == "APAC, 16,384 passes"
    assert table.changes(deformed) == "APAC corrected 2 and spoiled 1 of the 1,000 plain predictions (McNemar p = 1)."


def test_every_cell_of_a_table_is_in_the_page_and_nothing_is_markup_by_accident():
    page = report.html("a < b", "lead & more", [report.Section("s", table=table.Table("t", ("<b>",), (("x & y",),)))])
    assert "a &lt; b" in page
    assert "<th>&lt;b&gt;</th>" in page
    assert "<td>x &amp; y</td>" in page
    assert "lead &amp; more" in page


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_figures_are_drawn_for_grey_and_colour_images_with_and_without_errors(shape, random):
    images = torch.rand(12, *shape, generator=random)
    labels = torch.arange(12) % 10
    network = models.build("mnist-mlp" if shape[0] == 1 else "cifar10-mlp", generator=generator(0, "test", 0)).eval()
    classifier = apac.Classifier(network, apac.Homography(), apac.FixedPasses(3))
    result = evaluate(classifier, images, labels, (1, 3))
    right = evaluate(classifier, images, classifier.decide(images).labels, (3,))
    assert right.wrong == ()
    classes = [f"class {c}" for c in range(10)]
    drawn = [
        figures.deformed_samples(images[:3], apac.presets.cifar10()),
        figures.error_against_m(result, result),
        figures.misclassified(images, labels, result, classes),
        figures.misclassified(images, labels, right, classes),
        figures.corrected(images[:1], labels[:1], classifier, images[:1], classes),
        figures.first_layer_weights([("a", network), ("b", network)], shape),
    ]
    for picture in drawn:
        with Image.open(io.BytesIO(picture)) as image:
            assert min(image.size) > 50
            assert np.asarray(image.convert("L")).std() > 1


def test_a_convolutional_network_has_no_weight_maps_to_draw():
    network = models.build("mnist-cnn", generator=generator(0, "test", 0))
    assert figures.first_layer_weights([("cnn", network)], (1, 28, 28)) is None
