"""The ways to decide that benchmarks/views.py compares."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

import apac
from script_files import load_script

SHAPE = (1, 6, 7)
NETWORK = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(42, 3))


@pytest.fixture
def views(monkeypatch):
    return load_script(Path(__file__).parents[2] / "benchmarks" / "views.py", monkeypatch)


@pytest.fixture
def images(random):
    return torch.rand(5, *SHAPE, generator=random)


def run(u: apac.Deformation) -> SimpleNamespace:
    """A run whose network takes images of this shape."""

    def classifier(*, paper_rule: bool, rule: apac.Rule | None = None) -> apac.Classifier:
        return apac.Classifier(NETWORK, u, rule or apac.Certified())

    return SimpleNamespace(deformation=u, image_shape=SHAPE, classifier=classifier)


def log_probabilities(images):
    with torch.no_grad():
        return NETWORK(images).log_softmax(1)


def mirrored(images):
    return 0.5 * log_probabilities(images) + 0.5 * log_probabilities(images.flip(3))


def crops_of(images):
    """The images shifted by up to a pixel, in airbench's way: reflect and crop."""
    padded = functional.pad(images, (1, 1, 1, 1), "reflect")
    return {(x, y): padded[:, :, y : y + 6, x : x + 7] for x in range(3) for y in range(3)}


def six_views(images):
    crops = crops_of(images)
    return 0.5 * mirrored(images) + 0.25 * mirrored(crops[0, 0]) + 0.25 * mirrored(crops[2, 2])


def assert_scores(scores, expected):
    # Two batch sizes of a matrix product round differently, by a few units of float32's last digit of logits near 1.
    torch.testing.assert_close(scores, expected.double(), rtol=0, atol=1e-5)


def test_the_six_views_and_all_values_are_the_means_of_a_padded_and_mirrored_image(views, images):
    ways = views.Table.of_values(run(apac.Compose(apac.Flip(), apac.Shift(1))), images).scores()
    assert_scores(ways["plain"][1], log_probabilities(images))
    assert_scores(ways["six views"][1], six_views(images))
    assert_scores(ways["all values"][1], torch.stack([mirrored(crop) for crop in crops_of(images).values()]).mean(0))
    assert [ways[name][0] for name in ("plain", "six views", "all values")] == [1, 6, 18]
    assert ways["product, M = 16"][0] == 16


@pytest.mark.parametrize(("table_of", "second"), [("of_values", apac.Shift(1)), ("of_passes", apac.Homography())])
def test_the_rules_decide_by_a_table_as_by_the_deformation(views, images, table_of, second):
    u = apac.Compose(apac.Flip(), second)
    table = getattr(views.Table, table_of)(run(u), images)
    ways = table.scores()
    for passes in (16, 256):
        fixed = apac.Classifier(NETWORK, u, apac.FixedPasses(passes)).decide(images)
        assert_scores(ways[f"product, M = {passes}"][1], fixed.log_scores)
    certified = apac.Classifier(NETWORK, u, table.rule).decide(images)
    assert ways["certified"][0] == certified.passes.double().mean()
    assert_scores(ways["certified"][1], certified.log_scores)
    assert_scores(ways["plain"][1], log_probabilities(images))
    assert_scores(ways["six views"][1], six_views(images))
