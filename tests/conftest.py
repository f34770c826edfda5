"""What several test folders share: kinds of deformation, digits, and a small trained network."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import apac
from apac.randomness import generator

# one of every kind, with values other than the defaults
KINDS = [
    apac.Homography(std=0.2),
    apac.Homography(std=0.05, outside="edge"),
    apac.Elastic(sigma=2.0, alpha=9.0),
    apac.Elastic(sigma=3.5, alpha=20.0, outside=-1.0),
    apac.ScaleShift(scale=(1.2, 1.8)),
    apac.Flip(0.3),
    apac.Thickness(dilate=0.4, erode=0.3, size=3),
    apac.Color(gamma=(0.5, 2.0), cast=0.1),
    apac.Compose(),
    apac.Compose(apac.Color(), apac.Flip()),
    apac.presets.mnist(),
    apac.presets.cifar10(),
]
PER_CLASS = apac.PerClass({1: apac.Homography(std=0.02), 7: apac.Compose()}, default=apac.presets.mnist(), classes=10)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Small tensors do not gain from threads, and other work on the machine can stall them."""
    torch.set_num_threads(1)


@pytest.fixture
def random() -> torch.Generator:
    return generator(0, "test", 0)


@pytest.fixture(scope="session")
def digits() -> tuple[Tensor, Tensor]:
    """The embedded test images in [0, 1], and their labels."""
    from apac import data

    dataset = data.load("mnist-5k")
    return dataset.test_images.float() / 255, dataset.test_labels
