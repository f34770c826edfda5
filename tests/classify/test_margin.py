"""Standard errors of differences between classes agree with numpy on the table of all passes."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch

import apac
from apac.classify.combine import Combine
from apac.classify.margin import CONTENDERS, MarginMoments


@pytest.mark.parametrize("classes", [2, 40])
def test_the_error_is_that_of_paired_differences(classes, random):
    passes = torch.randn(48, 6, classes, generator=random, dtype=torch.float64).cumsum(2)  # classes correlate
    pairs = MarginMoments.zero(passes[0])
    for batch in passes.split(16):
        pairs = pairs.add(batch)
    one, other = passes[0].topk(2).indices.T
    rows = torch.arange(6)
    difference = (passes[:, rows, one] - passes[:, rows, other]).numpy()
    np.testing.assert_allclose(pairs.error(one, other), difference.std(0, ddof=1) / np.sqrt(48), rtol=1e-9)


def test_large_values_with_small_variance_keep_their_precision(random):
    noise = 1e-6 * torch.randn(200, 1, 2, generator=random, dtype=torch.float64)
    passes = torch.tensor([-300.0, -1.0], dtype=torch.float64) + noise
    pairs = MarginMoments.zero(passes[0]).add(passes)
    expected = (noise[:, 0, 0] - noise[:, 0, 1]).std() / 200**0.5
    error = pairs.error(torch.tensor([1]), torch.tensor([0]))
    # A value near 300 rounds at 6e-14, 6e-8 of the noise.
    assert error.item() == pytest.approx(expected.item(), rel=1e-4)


def test_a_class_that_was_far_behind_in_the_first_pass_has_no_error():
    values = torch.arange(CONTENDERS + 4, dtype=torch.float64)[None]  # the first four classes are not tracked
    pairs = MarginMoments.zero(values).add(values.expand(3, -1, -1))
    assert pairs.error(torch.tensor([0]), torch.tensor([19])).isnan().all()
    assert pairs.error(torch.tensor([4]), torch.tensor([19])).tolist() == [0.0]


def test_one_pass_has_no_error():
    values = torch.zeros(2, 3)
    assert MarginMoments.zero(values).add(values[None]).error(torch.tensor([0, 1]), torch.tensor([1, 2])).isnan().all()


@pytest.mark.parametrize("combine", get_args(Combine))
def test_a_decision_has_the_runner_up_and_the_margin_with_its_error(combine, digits):
    images = digits[0][:8].double()  # in float64, rounding swaps no classes
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10)).double()
    classifier = apac.Classifier(network, apac.presets.mnist(), apac.FixedPasses(20), combine=combine)
    decision = classifier.decide(images)
    table = np.stack([classifier.score(images, m, m + 1).mean(combine) for m in range(20)])
    best, second = np.argsort(-table.mean(0), axis=1)[:, :2].T
    rows = np.arange(8)
    assert decision.runners_up.tolist() == second.tolist()
    difference = table[:, rows, best] - table[:, rows, second]
    # Products of several passes round the float32 displacements in another order, by 1e-6 of a pixel.
    np.testing.assert_allclose(decision.margins, difference.mean(0), atol=1e-6)
    np.testing.assert_allclose(decision.margin_errors, difference.std(0, ddof=1) / np.sqrt(20), atol=1e-6)
