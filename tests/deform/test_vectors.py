"""Deformations of vectors and time series, compared with numpy and their distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import apac
from apac.deform.time import TimeShiftParameters, TimeWarpParameters

SERIES = (2, 1, 30)
untyped: Any = apac  # for arguments of the wrong type


def test_jitter_is_gaussian_and_independent_for_every_element(random):
    noise = apac.Jitter(std=0.4).sample(4000, (1, 1, 5), generator=random).noise.view(4000, 5)
    for column in noise.T:
        assert stats.kstest(column.numpy(), "norm", args=(0, 0.4)).pvalue > 1e-3
    assert np.abs(np.corrcoef(noise.T) - np.eye(5)).max() < 0.08


def test_dropout_replaces_each_element_with_its_probability(random):
    u = apac.FeatureDropout(p=0.2, value=-3.0)
    images = torch.rand(5000, 1, 1, 4, generator=random)
    virtual = u.apply(images, u.sample(5000, (1, 1, 4), generator=random))
    dropped = virtual == -3.0
    assert torch.equal(virtual[~dropped], images[~dropped])
    for count in dropped.sum(0).flatten().tolist():
        assert stats.binomtest(count, 5000, 0.2).pvalue > 1e-3


def test_amplitude_multiplies_each_channel_by_a_log_normal_factor(random):
    u = apac.Amplitude(std=0.3)
    images = torch.rand(3000, *SERIES, generator=random) + 1
    factors = (u.apply(images, u.sample(3000, SERIES, generator=random)) / images)[:, :, 0]
    torch.testing.assert_close(factors, factors[..., :1].expand(-1, -1, 30))
    for channel in range(2):
        assert stats.kstest(factors[:, channel, 0].log().numpy(), "norm", args=(0, 0.3)).pvalue > 1e-3
    assert abs(np.corrcoef(factors[:, 0, 0], factors[:, 1, 0])[0, 1]) < 0.08


@pytest.mark.parametrize("shift", [0.0, 0.1, -0.25, 0.013, 0.9])
def test_a_time_shift_is_numpys_interpolation(shift, random):
    series = torch.rand(3, *SERIES, generator=random)
    result = apac.TimeShift().apply(series, TimeShiftParameters(torch.tensor([shift]))).numpy()
    time = np.arange(30)
    for i in range(3):
        for channel in range(2):
            expected = np.interp(time - 30 * np.float32(shift), time, series[i, channel, 0].numpy())
            np.testing.assert_allclose(result[i, channel, 0], expected, atol=1e-5)


def test_shifts_are_uniform(random):
    shift = apac.TimeShift(max_shift=0.2).sample(4000, SERIES, generator=random).shift
    assert stats.kstest(shift.numpy(), "uniform", args=(-0.2, 0.4)).pvalue > 1e-3


def test_a_time_warp_is_numpys_interpolation(random):
    series = torch.rand(4, *SERIES, generator=random)
    speed = torch.tensor([[1.0, 3.0, 0.5], [1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [0.2, 1.0, 4.0]])
    result = apac.TimeWarp(parts=3).apply(series, TimeWarpParameters(speed)).numpy()
    time = np.linspace(0, 1, 30)
    for i in range(4):
        passed = np.concatenate([[0], np.cumsum(speed[i].numpy())]) / speed[i].sum().item()
        when = np.interp(time, np.linspace(0, 1, 4), passed)
        for channel in range(2):
            expected = np.interp(when, time, series[i, channel, 0].numpy())
            np.testing.assert_allclose(result[i, channel, 0], expected, atol=1e-5)
    np.testing.assert_allclose(result[1:3], series[1:3], atol=1e-5)  # equal speeds change nothing
    np.testing.assert_allclose(result[..., [0, -1]], series[..., [0, -1]], atol=1e-5)


def test_ratios_of_speeds_are_log_normal(random):
    speed = apac.TimeWarp(std=0.5, parts=2).sample(4000, SERIES, generator=random).speed
    ratio = (speed[:, 0] / speed[:, 1]).log()
    assert stats.kstest(ratio.numpy(), "norm", args=(0, 0.5 * 2**0.5)).pvalue > 1e-3
    wild = apac.TimeWarp(std=1000.0).sample(50, SERIES, generator=random).speed
    assert wild.isfinite().all()
    torch.testing.assert_close(wild.amax(1), torch.ones(50))


@pytest.mark.parametrize("u", [apac.TimeShift(), apac.TimeWarp()], ids=repr)
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_short_series_are_interpolated_within_their_values(u, steps, random):
    series = torch.rand(6, 1, 1, steps, generator=random)
    virtual = u.apply(series, u.sample(6, (1, 1, steps), generator=random))
    assert virtual.shape == series.shape
    assert (virtual.amin(-1) >= series.amin(-1) - 1e-6).all() and (virtual.amax(-1) <= series.amax(-1) + 1e-6).all()


@pytest.mark.parametrize("u", [apac.Jitter(), apac.FeatureDropout(), apac.Amplitude()], ids=repr)
def test_parameters_for_another_shape_are_rejected(u, random):
    parameters = u.sample(2, (3, 1, 5), generator=random)
    with pytest.raises(apac.InputError, match="were sampled for the shape"):
        u.apply(torch.rand(2, 2, 1, 5), parameters)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: apac.Jitter(-1), "std of a Jitter must be a number between 0 and"),
        (lambda: apac.FeatureDropout(1.5), "p of a FeatureDropout must be a number between 0 and 1"),
        (lambda: untyped.Amplitude("x"), "std of an Amplitude must be a number"),
        (lambda: apac.TimeShift(2), "max_shift of a TimeShift must be a number between 0 and 1"),
        (lambda: apac.TimeWarp(parts=0), "parts of a TimeWarp must be an integer of at least 1"),
    ],
)
def test_wrong_arguments_are_rejected_in_one_sentence(make, sentence):
    with pytest.raises(apac.InputError, match=sentence):
        make()
