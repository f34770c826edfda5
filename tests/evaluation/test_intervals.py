"""Intervals and tests of counts, against scipy; the bootstrap."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from apac.evaluation import intervals


@pytest.mark.parametrize(("count", "images"), [(0, 1), (1, 1), (0, 50), (3, 50), (25, 50), (50, 50), (1155, 10_000)])
def test_the_interval_is_that_of_clopper_and_pearson(count, images):
    expected = stats.binomtest(count, images).proportion_ci(0.95, method="exact")
    # The sum of up to 10,000 rounded terms, divided by the slope of the tail.
    assert intervals.binomial_interval(count, images) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_no_images_leave_everything_open():
    assert intervals.binomial_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("corrected", "corrupted"), [(0, 0), (1, 0), (5, 5), (3, 11), (40, 12), (700, 2), (6000, 5900)]
)
def test_mcnemar_is_the_exact_binomial_test(corrected, corrupted):
    n = corrected + corrupted
    expected = stats.binomtest(corrected, n).pvalue if n else 1.0
    assert intervals.mcnemar(corrected, corrupted) == pytest.approx(expected, rel=1e-9)


def test_bootstrap_samples_have_the_size_of_the_set_and_depend_on_the_seed_alone(monkeypatch):
    samples = torch.cat(list(intervals.resampled_weights(30, seed=1)))
    assert samples.shape == (intervals.RESAMPLES, 30)
    assert (samples.sum(dim=1) == 30).all()
    assert samples.max() > 1
    monkeypatch.setattr(intervals, "CHUNK", 100)
    in_chunks = list(intervals.resampled_weights(30, seed=1))
    assert len(in_chunks) > 1
    assert torch.equal(torch.cat(in_chunks), samples)
    assert not torch.equal(torch.cat(list(intervals.resampled_weights(30, seed=2))), samples)
