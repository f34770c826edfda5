"""Measures as tables, sentences and figures."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from apac.evaluation.certified_measures import Answers, CertifiedMeasures
from apac.evaluation.fixed import Evaluation, Row
from apac.evaluation.measures import CalibratedScores, Estimate, Measures, measure
from apac.randomness import generator
from apac.reporting import measures as shown
from apac.reporting.figures import probabilities as figures
from evaluations import evaluation

IMAGES = 300


@pytest.fixture(scope="module")
def measured() -> tuple[Measures, ...]:
    """The plain prediction, product and sum after 4 and 16 passes; less noise and a lower temperature with more."""
    truth = 2 * torch.randn(IMAGES, 4, generator=generator(0, "test", 0), dtype=torch.float64)
    labels = torch.multinomial(truth.softmax(dim=1), 1, generator=generator(0, "test", 1))[:, 0]
    noise = torch.randn(IMAGES, 4, generator=generator(0, "test", 2), dtype=torch.float64)
    rules = [CalibratedScores("plain", 1, truth + 2 * noise, torch.full((IMAGES,), 1.5))]
    rules += [
        CalibratedScores(rule, passes, truth + noise / passes, torch.full((IMAGES,), 1 / passes))
        for passes in (4, 16)
        for rule in ("product", "sum")
    ]
    return measure(rules, labels)


@pytest.fixture
def evaluated(measured) -> Evaluation:
    return replace(evaluation(0.1, Row(4, 0.1, 0.1, 0.1), Row(16, 0.1, 0.1, 0.1)), measures=measured)


def test_plain_product_and_sum_are_side_by_side(evaluated, measured):
    largest = shown.largest(evaluated)
    assert [(part.rule, part.passes) for part in largest] == [("plain", 1), ("product", 16), ("sum", 16)]
    table = shown.side_by_side(largest)
    assert table.title == "Measures after 16 passes, ± standard error"
    assert table.columns == ("", "plain", "product", "sum")
    cells = {row[0]: row[1:] for row in table.rows}
    assert cells["error"] == tuple(f"{100 * part.error.value:.2f} %" for part in largest)
    nll = measured[0].uncalibrated.nll
    assert cells["neg. log-likelihood"][0] == f"{nll.value:.3f} ± {nll.standard_error:.3f}"
    assert cells["  temperature"] == ("1.50", "0.06", "0.06")
    assert "coverage at 1 % risk" in cells
    assert max(len(row[0]) for row in table.rows) + 3 * 15 + 13 <= 80  # the width of a terminal


def test_only_the_plain_prediction_is_shown_if_nothing_else_was_evaluated(measured):
    alone = replace(evaluation(0.1), measures=measured[:1])
    assert shown.side_by_side(shown.largest(alone)).columns == ("", "plain")


def test_the_likelihood_is_shown_for_every_m(evaluated, measured):
    table = shown.likelihood_against_m(evaluated)
    assert [row[:2] for row in table.rows] == [("plain", "1"), ("APAC", "4"), ("APAC", "16")]
    product, by_sum = measured[1:3]
    assert table.rows[1][2:] == tuple(
        text
        for part in (product, by_sum)
        for text in (f"{part.uncalibrated.nll.value:.4f}", f"{part.calibrated.nll.value:.4f}", "0.25")
    )


@pytest.mark.parametrize(
    ("value", "change_error", "words"),
    [
        (0.3, 0.01, "falls from 0.400 to 0.300 (-25 %, 10.0 standard errors): far beyond chance."),
        (0.41, 0.01, "rises from 0.400 to 0.410 (+2 %, 1.0 standard errors): may be chance."),
        (0.38, 0.008, "falls from 0.400 to 0.380 (-5 %, 2.5 standard errors): probably not chance."),
        (0.4, 0.0, "stays at 0.400."),
    ],
)
def test_the_change_of_the_likelihood_is_a_sentence(value, change_error, words, measured):
    def with_nll(estimate: Estimate) -> Measures:
        return replace(measured[0], calibrated=replace(measured[0].calibrated, nll=estimate))

    plain, apac = with_nll(Estimate(0.4, 0.1, 0, 0)), with_nll(Estimate(value, 0.1, value - 0.4, change_error))
    assert shown.likelihood_sentence(plain, apac) == f"The calibrated negative log-likelihood {words}"


def test_the_fit_of_the_temperatures_is_named():
    assert "1,600 training images that the run held out" in shown.temperature_sentence(1600)
    assert "cross-fitted" in shown.temperature_sentence(0)


def test_settled_does_not_read_as_right():
    settled, other = Answers(196, 131, 131 / 196, (0.6, 0.73)), Answers(4, 1, 0.25, (0.01, 0.81))
    none = Answers(0, 0, None, (0.0, 1.0))
    sentence = shown.settled_sentence(CertifiedMeasures((), settled, other, 0, ()))
    assert sentence == (
        "Settled means that more passes would not change the answer, not that it is right: of 196 settled answers "
        "66.84 % are right (60.00-73.00 %); of 4 not settled answers 25.00 % are right (1.00-81.00 %)."
    )
    assert "not settled" not in shown.settled_sentence(CertifiedMeasures((), settled, none, 0, ()))


def test_figures_show_the_bins_and_the_curve_of_each_rule(evaluated, monkeypatch):
    parts = shown.largest(evaluated)
    for draw in (figures.reliability, figures.risk_coverage):
        with Image.open(io.BytesIO(draw(parts))) as image:
            assert image.format == "PNG"
            assert np.asarray(image.convert("L")).std() > 5
    monkeypatch.setattr(figures, "png", lambda figure: figure)
    figure: Any = figures.reliability(parts)
    for axes, name in zip(figure.axes, ("uncalibrated", "calibrated"), strict=True):
        for line, part in zip(axes.get_lines(), parts, strict=False):
            bins = [bin for bin in getattr(part, name).bins if bin.images >= figures.MIN_IMAGES]
            assert line.get_xydata().tolist() == [[bin.confidence, bin.accuracy] for bin in bins]
            assert line.get_label().startswith(part.rule)
    figure = figures.risk_coverage(parts)
    for line, part in zip(figure.axes[0].get_lines(), parts, strict=False):
        assert line.get_ydata()[-1] == pytest.approx(100 * part.error.value)
        assert line.get_xdata()[-1] == 100
