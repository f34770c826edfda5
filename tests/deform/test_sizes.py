"""Deformations at any image size: strengths that scale with the image, and the same results from both paths."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage, stats
from torch import Tensor

import apac
from apac.deform.color import ColorParameters
from apac.deform.thickness import ThicknessParameters
from apac.randomness import generator
from kernel_paths import apply_by_torch

SIZES = [(28, 28), (32, 32), (96, 96), (60, 140), (224, 224)]
PRESETS = [apac.presets.mnist(), apac.presets.cifar10(), apac.presets.photos()]
each_preset = pytest.mark.parametrize("u", PRESETS, ids=["mnist", "cifar10", "photos"])
each_size = pytest.mark.parametrize("size", SIZES, ids=str)


def smooth_images(n: int, shape: tuple[int, int, int], random: torch.Generator) -> Tensor:
    """Images in [0, 1] without sharp edges, dark at the border: neighbors differ by up to 0.1.

    A float32 coordinate near 200 is rounded to 1.5e-5 pixel, which changes such an image by 1e-6.
    """
    noise = torch.rand(n, *shape, generator=random).numpy()
    rows, columns = (np.hanning(side + 2)[1:-1].astype(np.float32) for side in shape[1:])
    return torch.from_numpy(ndimage.gaussian_filter(noise, (0, 0, 1.5, 1.5)) * rows[:, None] * columns)


def without_reference(u: apac.Compose) -> apac.Compose:
    parts: list[Any] = list(u.parts)
    return apac.Compose(*[replace(p, reference_size=None) if hasattr(p, "reference_size") else p for p in parts])


@pytest.mark.parametrize(("u", "side"), [(PRESETS[0], 28), (PRESETS[1], 32)], ids=["mnist", "cifar10"])
def test_at_its_reference_size_a_preset_is_the_papers_in_pixels_bit_for_bit(u, side, random):
    shape = (3, side, side)
    images = torch.rand(4, *shape, generator=random)
    in_pixels = without_reference(u)
    assert in_pixels != u
    for n in (4, 1):
        first, second = (v.sample(n, shape, generator=generator(0, "test", 0)) for v in (u, in_pixels))
        assert torch.equal(u.apply(images, first), in_pixels.apply(images, second))


def displacement_by_side(size: tuple[int, int], n: int) -> Tensor:
    """The displacement at the center of images, as a fraction of the shorter side."""
    u = apac.Elastic(sigma=6.0, alpha=38.0, reference_size=28)
    flow = u.flow(u.sample(n, (1, *size), generator=generator(0, "test", size[0])), size)
    assert flow.displacement is not None
    return flow.displacement[:, :, size[0] // 2, size[1] // 2].flatten() / min(size)


def test_an_elastic_distortion_moves_pixels_by_the_same_fractions_of_an_image_of_any_size():
    small, wide, large = (displacement_by_side(size, 150) for size in ((28, 28), (60, 140), (224, 224)))
    for other in (wide, large):
        assert stats.ks_2samp(small.numpy(), other.numpy()).pvalue > 1e-3
    expected = 38 / (6 * 2 * math.sqrt(3 * math.pi)) / 28  # of an infinite image
    assert large.std().item() == pytest.approx(expected, rel=0.2)  # 300 numbers: 4 % of standard error


@pytest.mark.parametrize("size", [(96, 96), (50, 130)], ids=str)
def test_a_scaled_elastic_distortion_is_scipys_gaussian_filter_with_the_scaled_strengths(size, random):
    u = apac.Elastic(sigma=6.0, alpha=38.0, padding="edge", reference_size=28)
    parameters = u.sample(1, (1, *size), generator=random)
    f = min(size) / 28
    filtered = [
        38 * f**2 * ndimage.gaussian_filter(axis, 6 * f, mode="constant", truncate=4.0)
        for axis in parameters.noise[0].double().numpy()
    ]
    flow = u.flow(parameters, size)
    assert flow.displacement is not None
    np.testing.assert_allclose(flow.displacement[0].numpy(), np.stack(filtered), atol=1e-5)
    images = smooth_images(1, (1, *size), random)
    y, x = np.indices(size)
    expected = ndimage.map_coordinates(
        images[0, 0].double(), [y + filtered[1], x + filtered[0]], order=1, mode="nearest"
    )
    np.testing.assert_allclose(u.apply(images, parameters)[0, 0].numpy(), expected, atol=1e-5)


def test_strokes_widen_by_the_same_fraction_of_an_image_of_any_size():
    """Thickness of an enlarged image is the enlarged image of the Thickness, but for the position of an even window."""
    u = apac.Thickness(dilate=1.0, erode=0.0, reference_size=28)
    assert [u.window((side, 300)) for side in (7, 14, 28, 42, 56, 224)] == [1, 2, 2, 3, 3, 9]
    image = torch.zeros(1, 1, 28, 28)
    image[:, :, 8:20, 12:15] = 1
    enlarged = image.repeat_interleave(8, 2).repeat_interleave(8, 3)
    for change, oracle in ((1, ndimage.grey_dilation), (-1, ndimage.grey_erosion)):
        parameters = ThicknessParameters(torch.tensor([change], dtype=torch.int8))
        small, large = u.apply(image, parameters), u.apply(enlarged, parameters)
        assert small.sum() * 64 == large.sum() != enlarged.sum()
        np.testing.assert_array_equal(large[0, 0].numpy(), oracle(enlarged[0, 0].numpy(), size=(9, 9)))


@each_preset
@each_size
def test_kernel_and_torch_agree_at_any_size(u, size, random):
    shape = (3, *size)
    images = smooth_images(3, shape, random)
    for n in (3, 1):
        parameters = u.sample(n, shape, generator=random)
        torch.testing.assert_close(
            u.apply(images, parameters), apply_by_torch(u, images, parameters), atol=1e-5, rtol=0
        )


def test_large_images_are_deformed_in_several_tiles_as_one_by_one(random):
    u, shape = apac.presets.photos(), (1, 130, 140)
    images = smooth_images(70, shape, random)
    parameters = u.sample(70, shape, generator=random)
    for p in (parameters, u.sample(1, shape, generator=random)):
        torch.testing.assert_close(u.apply(images, p), apply_by_torch(u, images, p), atol=1e-5, rtol=0)


def test_photos_stay_upright_and_keep_most_of_the_picture():
    u = apac.presets.photos()
    parameters = u.sample(2000, (3, 96, 96), generator=generator(0, "test", 0))
    shown = torch.stack([torch.arange(96.0).expand(96, 96).T, torch.arange(96.0).expand(96, 96), torch.zeros(96, 96)])
    virtual = apac.Compose(*u.parts[:3]).apply(shown.expand(2000, 3, 96, 96), type(parameters)(parameters.parts[:3]))
    rows, columns = virtual[:, 0], virtual[:, 1]
    assert (rows[:, -1].mean(1) > rows[:, 0].mean(1) + 48).all()  # never upside down
    mirrored = columns[:, :, 0].mean(1) > columns[:, :, -1].mean(1)
    assert stats.binomtest(int(mirrored.sum()), 2000, 0.5).pvalue > 1e-3
    center = rows[:, 48, 48] / 95
    assert center.min() > 0.2 and center.max() < 0.8


def test_colors_at_the_ends_of_the_range_are_those_of_the_formula():
    pixels = torch.tensor([0.0, 1e-45, 1e-38, 1e-10, 0.5, 1.0, -3.0, 7.0, math.nan])
    gamma = torch.tensor([0.001, 0.3, 1.0, 2.5, 60.0])
    images = pixels.expand(5, 1, 1, 9)
    got = apac.Color().apply(images, ColorParameters(gamma, torch.zeros(5, 1)))[:, 0, 0]
    expected = pixels.double().clamp(0, 1)[None] ** gamma.double()[:, None]
    torch.testing.assert_close(got, expected.float(), atol=1e-6, rtol=0, equal_nan=True)
    assert torch.equal(got[2, :8], pixels[:8].clamp(0, 1))  # gamma 1 changes nothing
