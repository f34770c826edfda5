"""Parameters follow the paper's distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

import apac
from apac.deform.elastic import gaussian_matrix

N = 20_000
SHAPE = (3, 32, 32)


def fits(sample: torch.Tensor, law: str, *arguments: float) -> bool:
    return stats.kstest(sample.numpy(), law, args=arguments).pvalue > 1e-3


def test_homography_elements_are_gaussian_around_the_identity(random):
    matrix = apac.Homography(std=0.1).sample(N, SHAPE, generator=random).matrix
    for i in range(3):
        for j in range(3):
            if (i, j) == (2, 2):
                assert (matrix[:, 2, 2] == 1).all()
            else:
                assert fits(matrix[:, i, j], "norm", float(i == j), 0.1)
    free = matrix.flatten(1)[:, :8].numpy()
    assert np.abs(np.corrcoef(free.T) - np.eye(8)).max() < 0.04  # independent


def test_the_elements_that_rotate_and_shear_may_have_their_own_std(random):
    gentle = apac.Homography(std=0.1, shear=0.05)
    assert repr(gentle) == "Homography(std=0.1, padding=0.0, shear=0.05)"
    assert apac.Deformation.from_json(gentle.to_json()) == gentle != apac.Homography(std=0.1)
    free = gentle.sample(N, SHAPE, generator=random).matrix.flatten(1)
    for element in range(8):
        assert fits(free[:, element], "norm", float(element in (0, 4)), 0.05 if element in (1, 3) else 0.1)
    with pytest.raises(apac.InputError, match="shear of a Homography must be a number between 0 and"):
        apac.Homography(shear=-0.1)


def test_elastic_noise_is_uniform_and_the_axes_are_independent(random):
    noise = apac.Elastic().sample(50, SHAPE, generator=random).noise
    assert noise.shape == (50, 2, 32, 32)
    assert fits(noise.flatten()[:N], "uniform", -1, 2)
    assert abs(np.corrcoef(noise[:, 0].flatten(), noise[:, 1].flatten())[0, 1]) < 0.02


@pytest.mark.parametrize(("sigma", "alpha"), [(6.0, 38.0), (8.0, 40.0)])
def test_elastic_field_has_the_variance_and_correlation_length_of_filtered_noise(sigma, alpha, random):
    """Far from the edges: variance alpha²/3 · (Σ g²)², correlation exp(−d² / 4σ²) at distance d."""
    side, n = 129, 300
    u = apac.Elastic(sigma=sigma, alpha=alpha)
    flow = u.flow(u.sample(n, (1, side, side), generator=random), (side, side))
    assert flow.displacement is not None
    center = flow.displacement[:, :, 64, 50:80].reshape(-1, 30).double()  # rows of the field
    taps = np.exp(-0.5 * (np.arange(-int(4 * sigma + 0.5), int(4 * sigma + 0.5) + 1) / sigma) ** 2)
    expected = alpha**2 / 3 * ((taps / taps.sum()) ** 2).sum() ** 2
    assert center.mean().abs() < 4 * math.sqrt(expected / len(center))
    assert center.var().item() == pytest.approx(expected, rel=0.15)
    for distance in (1, int(sigma), int(2 * sigma)):
        products = center[:, : 30 - distance] * center[:, distance:]
        assert products.mean().item() / expected == pytest.approx(math.exp(-(distance**2) / (4 * sigma**2)), abs=0.15)


def test_the_gaussian_filter_ends_at_four_sigma():
    row = gaussian_matrix(101, 3.0)[50]
    assert (row > 0).nonzero().flatten().tolist() == list(range(50 - 12, 50 + 13))
    assert row.sum().item() == pytest.approx(1.0, abs=1e-12)


def test_scale_is_uniform_and_the_patch_lies_anywhere_within_the_image(random):
    parameters = apac.ScaleShift().sample(N, (3, 20, 32), generator=random)
    assert fits(parameters.scale, "uniform", 1.0, 1.0)
    slack = 1 - 1 / parameters.scale
    assert fits(parameters.corner[:, 0] / (32 * slack), "uniform", 0, 1)
    assert fits(parameters.corner[:, 1] / (20 * slack), "uniform", 0, 1)
    assert abs(np.corrcoef(parameters.corner[:, 0] / slack, parameters.corner[:, 1] / slack)[0, 1]) < 0.03


def test_a_quarter_is_thickened_a_quarter_thinned_and_half_unchanged(random):
    change = apac.Thickness().sample(N, SHAPE, generator=random).change
    counts = [int((change == value).sum()) for value in (1, -1, 0)]
    assert stats.chisquare(counts, [N / 4, N / 4, N / 2]).pvalue > 1e-3


@pytest.mark.parametrize("probability", [0.0, 0.5, 0.8, 1.0])
def test_the_fraction_of_flips_is_the_probability(probability, random):
    flipped = int(apac.Flip(probability).sample(N, SHAPE, generator=random).flipped.sum())
    assert stats.binomtest(flipped, N, probability).pvalue > 1e-3


def test_gamma_is_log_uniform_and_the_cast_gaussian_in_each_channel(random):
    parameters = apac.Color(gamma=(0.5, 3.0), cast=0.07).sample(N, SHAPE, generator=random)
    assert fits(parameters.gamma.log(), "uniform", math.log(0.5), math.log(6.0))
    assert parameters.cast.shape == (N, 3)
    assert all(fits(parameters.cast[:, c], "norm", 0, 0.07) for c in range(3))
    assert np.abs(np.corrcoef(parameters.cast.T.numpy()) - np.eye(3)).max() < 0.04  # independent


def test_presets_hold_the_papers_numbers():
    assert apac.presets.mnist() == apac.Compose(
        apac.Homography(std=0.1),
        apac.Elastic(sigma=6.0, alpha=38.0, reference_size=28),
        apac.Thickness(dilate=0.25, erode=0.25, reference_size=28),
    )
    assert apac.presets.cifar10() == apac.Compose(
        apac.ScaleShift(scale=(1.0, 2.0)),
        apac.Elastic(sigma=8.0, alpha=40.0, padding="edge", reference_size=32),
        apac.Flip(0.5),
    )
