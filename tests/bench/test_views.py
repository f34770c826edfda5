"""The ways to decide that benchmarks/views.py compares."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional

import apac
from script_files import load_script

SHAPE = (1, 6, 7)


@pytest.fixture
def views(monkeypatch):
    return load_script(Path(__file__).parents[2] / "benchmarks" / "views.py", monkeypatch)


def test_the_six_views_and_all_values_are_the_means_of_a_padded_and_mirrored_image(views, random):
    """The formulas are those of airbench: reflect, crop, and mirror the crops."""
    images, labels = torch.rand(5, *SHAPE, generator=random), torch.arange(5) % 3
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(42, 3))
    u = apac.Compose(apac.Flip(), apac.Shift(1))

    def log_probabilities(x):
        with torch.no_grad():
            return network(x).log_softmax(1)

    def mirrored(x):
        return 0.5 * log_probabilities(x) + 0.5 * log_probabilities(x.flip(3))

    padded = functional.pad(images, (1, 1, 1, 1), "reflect")
    crops = {(x, y): padded[:, :, y : y + 6, x : x + 7] for x in range(3) for y in range(3)}
    six = 0.5 * mirrored(images) + 0.25 * mirrored(crops[0, 0]) + 0.25 * mirrored(crops[2, 2])
    every = torch.stack([mirrored(crop) for crop in crops.values()]).mean(0)

    classifier = apac.Classifier(network, u, apac.Exhaustive())
    table = torch.stack([classifier.score(images, value, value + 1).log_mean for value in range(18)])
    ways = views.Ways(table, labels, views.Picked(u, SHAPE)).scores()
    # Two batch sizes of a matrix product round differently, by a few units of float32's last digit of logits near 1.
    for name, expected in (("plain", log_probabilities(images)), ("six views", six), ("all values", every)):
        torch.testing.assert_close(ways[name][1], expected.double(), rtol=0, atol=1e-5)
    assert [ways[name][0] for name in ("plain", "six views", "all values")] == [1, 6, 18]
    assert ways["product, M = 16"][0] == 16
