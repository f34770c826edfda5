"""Sums over passes add, merge and lose no digits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from apac.classify.combine import Combine
from apac.classify.scores import Scores, sum_passes


def scores_of(passes: torch.Tensor) -> Scores:
    """Return the scores of passes (M, N, K)."""
    *_, (_, scores) = sum_passes(passes)
    return scores


@pytest.fixture
def passes(random: torch.Generator) -> torch.Tensor:
    return (3 * torch.randn(200, 4, 5, generator=random, dtype=torch.float64)).log_softmax(-1)


def test_means_and_standard_errors_agree_with_numpy(passes):
    scores, table = scores_of(passes), passes.numpy()
    values: dict[Combine, np.ndarray] = {"product": table, "sum": np.exp(table)}
    for combine, of_passes in values.items():
        np.testing.assert_allclose(scores.mean(combine), of_passes.mean(0), rtol=1e-12)
        np.testing.assert_allclose(scores.standard_error(combine), of_passes.std(0, ddof=1) / math.sqrt(200), rtol=1e-9)


def test_passes_0_to_99_merged_with_100_to_199_are_passes_0_to_199(passes):
    whole, merged = scores_of(passes), scores_of(passes[:100]).merge(scores_of(passes[100:]))
    assert merged.passes == whole.passes == 200
    for name in ("log_mean", "log_error", "probability_mean", "probability_error"):
        # Merging adds in another order: float64 rounds the last digits differently.
        torch.testing.assert_close(getattr(merged, name), getattr(whole, name), rtol=1e-12, atol=1e-15)


def test_batches_of_passes_have_the_same_sum_and_are_yielded_with_the_scores_that_include_them(passes):
    batches = list(sum_passes(passes, batch_size=16))
    assert [len(batch) for batch, _ in batches] == 12 * [16] + [8]
    assert [scores.passes for _, scores in batches] == [*range(16, 200, 16), 200]
    assert torch.equal(torch.cat([batch for batch, _ in batches]), passes)
    torch.testing.assert_close(batches[-1][1].log_sum, scores_of(passes).log_sum, rtol=1e-12, atol=0)


def test_adding_does_not_modify_the_previous_scores(passes):
    before = scores_of(passes[:3])
    log_sum = before.log_sum.clone()
    before.add(passes[3])
    assert torch.equal(before.log_sum, log_sum)
    assert before.passes == 3


def test_16384_passes_with_probabilities_of_1e_minus_30_lose_nothing():
    """The product would be 1e-491520. A difference of one part in 1e9 between two classes is preserved."""
    log = torch.tensor([[math.log(1e-30), math.log(1e-30) * (1 + 1e-9), 0.0]], dtype=torch.float64)
    *_, (_, scores) = sum_passes(log.expand(16_384, 1, 3), batch_size=16)
    assert scores.passes == 16_384
    assert scores.log_mean[0, 0].item() == pytest.approx(math.log(1e-30), rel=1e-12)
    assert (scores.log_mean[0, 0] - scores.log_mean[0, 1]).item() == pytest.approx(-math.log(1e-30) * 1e-9, rel=1e-3)


def test_one_pass_has_no_standard_error():
    assert Scores.zero(2, 3).add(torch.zeros(2, 3)).log_error.isnan().all()
