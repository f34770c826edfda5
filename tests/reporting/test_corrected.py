"""The picture of a corrected image."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import apac
from apac.randomness import generator
from apac.reporting.figures import corrected as figure
from apac.reporting.figures.corrected import Corrected, corrected, most_improved, title

CLASSES = ("cat", "dog", "deer", "frog", "ship", "truck")


def flipped(classes: int = len(CLASSES)) -> tuple[apac.Classifier, torch.Tensor]:
    """A classifier that says class 2 of an image and class 1 of its mirror image."""
    image = torch.zeros(1, 3, 4, 4)
    image[..., 0] = 1.0

    def network(images: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(len(images), classes)
        logits[:, 2], logits[:, 1] = images[:, 0, 0, 0], images[:, 0, 0, -1]
        return logits

    return apac.Classifier(network, apac.Flip(0.5), seed=3), image


def example(image: torch.Tensor, passes: int = 16) -> Corrected:
    plain = torch.tensor([0.02, 0.1, 0.8, 0.04, 0.03, 0.01])
    averaged = torch.tensor([0.001, 0.995, 0.002, 0.001, 0.0005, 0.0005])
    return Corrected(image, image, 1, plain, averaged, passes, CLASSES)


@pytest.fixture
def drawn(monkeypatch) -> Any:
    monkeypatch.setattr(figure, "png", lambda figure: figure)
    classifier, image = flipped()
    return corrected(example(image), classifier)


def test_the_title_says_what_each_rule_decides():
    assert title(example(flipped()[1])) == (
        "One pass: “deer”. The mean of 16 passes of randomly deformed copies: “dog”, the truth."
    )


def test_every_virtual_sample_has_the_prediction_of_its_own_pass(drawn):
    verdicts = [axes.get_xlabel() for axes in drawn.axes if axes.get_xlabel()]
    draws = [apac.Flip(0.5).sample(1, (3, 4, 4), generator=generator(3, "pass", m)) for m in range(16)]
    assert verdicts == ["dog" if bool(draw.flipped) else "deer" for draw in draws]
    assert set(verdicts) == {"dog", "deer"}


def test_the_bars_are_the_probabilities_with_the_true_class_first(drawn):
    plain, averaged = (axes for axes in drawn.axes if axes.patches)
    for axes, widths in ((plain, [10, 80, 4, 3]), (averaged, [99.5, 0.2, 0.1, 0.05])):
        assert [label.get_text() for label in axes.get_yticklabels()] == ["dog", "deer", "frog", "ship"]
        np.testing.assert_allclose([bar.get_width() for bar in axes.patches], widths, rtol=1e-5)
        assert axes.get_xlim() == (0, 100)
    assert [text.get_text() for text in averaged.texts] == ["> 99 %", "< 1 %", "< 1 %", "< 1 %"]
    written = [text.get_text() for text in drawn.texts]
    assert "“deer”, wrong ✗" in written
    assert "“dog”, right ✓" in written


@pytest.mark.parametrize("passes", [1, 5, 1024])
def test_the_picture_is_opaque_and_drawn_for_any_number_of_passes(passes):
    classifier, image = flipped()
    with Image.open(io.BytesIO(corrected(example(image, passes), classifier))) as picture:
        pixels = np.asarray(picture.convert("RGBA"))
    assert pixels.std() > 5
    assert (pixels[..., 3] == 255).all()  # readable on a dark page too
    assert tuple(pixels[0, 0, :3]) == (255, 255, 255)


def test_the_chosen_image_is_the_one_whose_true_class_gains_the_most():
    labels = torch.tensor([1, 0, 1, 1])
    plain = torch.tensor([[0.9, 0.1], [0.1, 0.9], [0.6, 0.4], [0.99, 0.01]])
    averaged = torch.tensor([[0.4, 0.6], [0.8, 0.2], [0.1, 0.9], [0.1, 0.9]])  # rises by 0.5, 0.7, 0.5 and 0.89
    pixels = torch.tensor([10, 20, 30, 40], dtype=torch.uint8).view(4, 1, 1, 1)
    chosen = most_improved((0, 1, 2), labels, pixels, 2.0 * pixels, plain, averaged, passes=7, classes=("a", "b"))
    assert (chosen.truth, chosen.passes, chosen.classes) == (0, 7, ("a", "b"))
    assert (float(chosen.pixels), float(chosen.inputs)) == (pytest.approx(20 / 255), 40.0)
    assert torch.equal(torch.stack([chosen.plain, chosen.apac]), torch.stack([plain[1], averaged[1]]))
