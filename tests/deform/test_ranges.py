"""Constructors refuse numbers that would fail, or take gigabytes, when they are used."""

from __future__ import annotations

import math

import pytest
import torch

import apac
from apac import limits
from kinds import KINDS

HUGE = 1e308


@pytest.mark.parametrize(
    "make",
    [
        lambda: apac.Elastic(sigma=1e8),
        lambda: apac.Elastic(sigma=HUGE),
        lambda: apac.Elastic(sigma=1e-320),
        lambda: apac.Elastic(alpha=-HUGE),
        lambda: apac.Elastic(padding=HUGE),
        lambda: apac.Elastic(reference_size=10**9),
        lambda: apac.Homography(HUGE),
        lambda: apac.Homography(shear=HUGE),
        lambda: apac.ScaleShift(scale=(1.0, HUGE)),
        lambda: apac.Shift(10**9),
        lambda: apac.Thickness(size=10**9),
        lambda: apac.Color(gamma=(1.0, HUGE)),
        lambda: apac.Color(cast=HUGE),
        lambda: apac.Jitter(HUGE),
        lambda: apac.Jitter(10**4000),
        lambda: apac.FeatureDropout(HUGE),
        lambda: apac.FeatureDropout(value=HUGE),
        lambda: apac.Amplitude(HUGE),
        lambda: apac.TimeWarp(HUGE),
        lambda: apac.TimeWarp(parts=10**9),
        lambda: apac.PerClass({}, default=apac.Flip(), classes=10_000_000),
        lambda: apac.PerClass({c: apac.Flip() for c in range(1001)}, classes=1001),
        lambda: apac.Compose(*[apac.Flip()] * (limits.PARTS + 1)),
        lambda: apac.Homography().scaled(HUGE),
    ],
)
def test_numbers_beyond_use_are_refused(make):
    with pytest.raises(apac.InputError) as caught:
        make()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


LARGEST = [
    apac.Elastic(sigma=limits.SIGMA[1], alpha=limits.PIXEL_DISTANCE, padding=limits.ABS_VALUE),
    apac.Elastic(sigma=limits.SIGMA[0], alpha=-limits.PIXEL_DISTANCE),
    apac.Elastic(sigma=limits.SIGMA[0], reference_size=limits.REFERENCE_SIZE),
    apac.Homography(limits.FACTOR, shear=limits.FACTOR),
    apac.ScaleShift(scale=(limits.FACTOR, limits.FACTOR)),
    apac.Shift(limits.SHIFT),
    apac.Thickness(0.5, 0.5, size=limits.WINDOW, reference_size=1),
    apac.Color(gamma=(1 / limits.FACTOR, limits.FACTOR), cast=limits.FACTOR),
    apac.Jitter(limits.ABS_VALUE),
    apac.FeatureDropout(value=limits.ABS_VALUE),
    apac.Amplitude(limits.LOG_STD),
    apac.TimeWarp(limits.FACTOR, parts=limits.TIME_PARTS),
]


@pytest.mark.parametrize("u", LARGEST, ids=repr)
def test_the_largest_numbers_work(u, random):
    images = torch.rand(3, 1, 5, 7, generator=random)
    result = u(images, generator=random)
    assert result.shape == images.shape
    assert result.isfinite().all()


@pytest.mark.parametrize("u", KINDS, ids=repr)
def test_any_strength_gives_finite_images_or_an_error(u, random):
    for strength in (limits.FACTOR, 30.0):
        try:
            scaled = u.scaled(strength)
        except apac.InputError as error:
            assert "must be" in str(error)
            continue
        assert scaled(torch.rand(3, 1, 5, 7, generator=random), generator=random).isfinite().all()


@pytest.mark.parametrize(
    "u", [apac.Elastic(), apac.Jitter(), apac.FeatureDropout(), apac.Thickness(), apac.presets.mnist()], ids=repr
)
@pytest.mark.parametrize("shape", [(1, 30_000, 30_000), (1, 0, 5), (1, 5), (1, 2.0, 3)])
def test_the_size_of_images_is_checked_before_parameters_are_sampled(u, shape, random):
    with pytest.raises(apac.InputError, match="image"):
        u.sample(1, shape, generator=random)


def test_a_filter_for_images_much_larger_than_the_reference_is_refused(random):
    with pytest.raises(apac.InputError, match="has a sigma of 1,000,000 pixels"):
        apac.Elastic(sigma=limits.SIGMA[1], reference_size=1).sample(1, (1, 100, 100), generator=random)


def test_a_window_larger_than_the_image_is_as_large_as_needed(random):
    images = torch.rand(2, 1, 5, 4, generator=random)
    largest = apac.Thickness(1.0, 0.0, size=limits.WINDOW)(images, generator=random)
    assert torch.equal(largest, images.amax(dim=(2, 3), keepdim=True).expand_as(images))


def test_the_gamma_of_a_large_strength_ends_at_the_limit():
    low, high = apac.Color(gamma=(0.5, 2.0), cast=0.0).scaled(limits.FACTOR).gamma  # type: ignore[attr-defined]
    assert math.isclose(low, 1 / limits.FACTOR) and math.isclose(high, limits.FACTOR)
