"""Sums of passes: they add, merge and lose nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from apac.classify.scores import Scores


def scores_of(passes: torch.Tensor) -> Scores:
    """Scores of passes (M, N, K)."""
    scores = Scores.zero(*passes.shape[1:])
    for one in passes:
        scores = scores.add(one)
    return scores


@pytest.fixture
def passes(random: torch.Generator) -> torch.Tensor:
    return (3 * torch.randn(200, 4, 5, generator=random, dtype=torch.float64)).log_softmax(-1)


def test_means_and_standard_errors_are_numpys(passes):
    scores, table = scores_of(passes), passes.numpy()
    np.testing.assert_allclose(scores.log_mean, table.mean(0), rtol=1e-12)
    np.testing.assert_allclose(scores.log_error, table.std(0, ddof=1) / math.sqrt(200), rtol=1e-9)
    np.testing.assert_allclose(scores.probability_mean, np.exp(table).mean(0), rtol=1e-12)
    np.testing.assert_allclose(scores.probability_error, np.exp(table).std(0, ddof=1) / math.sqrt(200), rtol=1e-9)


def test_passes_0_to_99_merged_with_100_to_199_are_passes_0_to_199(passes):
    whole, merged = scores_of(passes), scores_of(passes[:100]).merge(scores_of(passes[100:]))
    assert merged.passes == whole.passes == 200
    for name in ("log_mean", "log_error", "probability_mean", "probability_error"):
        torch.testing.assert_close(getattr(merged, name), getattr(whole, name), rtol=1e-12, atol=1e-15)


def test_adding_leaves_the_scores_before_as_they_were(passes):
    before = scores_of(passes[:3])
    kept = before.log_sum.clone()
    before.add(passes[3])
    assert torch.equal(before.log_sum, kept)
    assert before.passes == 3


def test_16384_passes_with_probabilities_of_1e_minus_30_lose_nothing():
    """The product would be 1e-491520. A difference of one part in 1e9 between two classes is still seen."""
    log = torch.tensor([[math.log(1e-30), math.log(1e-30) * (1 + 1e-9), 0.0]], dtype=torch.float64)
    scores = Scores.zero(1, 3)
    for _ in range(16_384):
        scores = scores.add(log)
    assert scores.log_mean[0, 0].item() == pytest.approx(math.log(1e-30), rel=1e-12)
    assert scores.log_mean[0, 0] > scores.log_mean[0, 1]
    assert (scores.log_mean[0, 0] - scores.log_mean[0, 1]).item() == pytest.approx(-math.log(1e-30) * 1e-9, rel=1e-3)


def test_one_pass_has_no_standard_error():
    assert Scores.zero(2, 3).add(torch.zeros(2, 3)).log_error.isnan().all()
