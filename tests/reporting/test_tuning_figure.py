"""The figure of a tuning shows what the choice is made by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import apac
from apac.reporting.figures import tuning


def test_bars_are_the_paired_differences_to_the_best(monkeypatch):
    choice = apac.load("cifar10-cnn").choice
    assert choice is not None
    drawn: list[Any] = []
    monkeypatch.setattr(tuning, "png", lambda figure: drawn.append(figure) or b"")
    tuning.nll_against_strength(choice)
    (axes,) = drawn[0].axes
    assert "above the best" in axes.get_ylabel()
    for container, combine in zip(axes.containers, ("sum", "product"), strict=True):
        candidates = [candidate for candidate in choice.candidates[1:] if candidate.combine == combine]
        line, _, (bars,) = container.lines
        assert line.get_ydata() == pytest.approx([candidate.above_best for candidate in candidates])
        ends = np.array([segment[:, 1] for segment in bars.get_segments()])
        expected = [
            [candidate.above_best - candidate.above_best_error, candidate.above_best + candidate.above_best_error]
            for candidate in candidates
        ]
        np.testing.assert_allclose(ends, expected, atol=1e-12)
    (ring,) = [line for line in axes.lines if line.get_label() == f"chosen: {choice.chosen}"]
    assert ring.get_xdata() == pytest.approx([choice.strength], abs=0.01)
    assert ring.get_ydata() == pytest.approx([choice.chosen.above_best])
