"""Each deformation compared with scipy.ndimage or OpenCV on the same parameters."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

import apac

SIZES = [(28, 28), (9, 17), (1, 7), (1, 1)]
# The code computes coordinates in float32, the oracle in float64: a few float32 steps, 2e-6 pixel near coordinate 20,
# times the contrast of two neighbors, at most 1.
ROUNDING = 2e-5


def random_images(n: int, shape: tuple[int, int, int], random: torch.Generator) -> Tensor:
    return torch.rand(n, *shape, generator=random)


def interpolate(image: np.ndarray, x: np.ndarray, y: np.ndarray, padding: float | str) -> np.ndarray:
    """The oracle's bilinear interpolation at column x and row y, both counted from the first pixel's center."""
    mode = {"mode": "nearest"} if padding == "edge" else {"mode": "grid-constant", "cval": padding}
    return np.stack([ndimage.map_coordinates(c, [y, x], order=1, **mode) for c in image.astype(np.float64)])


def unit_grid(height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """x and y of the pixel centers when the image spans [-1, 1]."""
    return np.meshgrid((2 * np.arange(width) + 1) / width - 1, (2 * np.arange(height) + 1) / height - 1)


def homography_coordinates(matrix: np.ndarray, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = unit_grid(height, width)
    hx, hy, hw = np.einsum("ij,jyx->iyx", matrix, np.stack([x, y, np.ones_like(x)]))
    return (hx / hw + 1) * width / 2 - 0.5, (hy / hw + 1) * height / 2 - 0.5


@pytest.mark.parametrize("padding", [0.0, 0.7, "edge"])
@pytest.mark.parametrize("size", SIZES)
def test_homography_is_map_coordinates_on_the_projected_grid(size, padding, random):
    u = apac.Homography(std=0.15, padding=padding)
    images = random_images(4, (3, *size), random)
    parameters = u.sample(4, (3, *size), generator=random)
    result = u.apply(images, parameters).numpy()
    for image, matrix, got in zip(images.numpy(), parameters.matrix.double().numpy(), result, strict=True):
        np.testing.assert_allclose(
            got, interpolate(image, *homography_coordinates(matrix, *size), padding), atol=ROUNDING
        )


def test_homography_is_opencv_warp_perspective(random):
    height, width = 24, 30
    u = apac.Homography(std=0.1)
    # smooth, because OpenCV rounds coordinates to 1/32 pixel
    images = torch.from_numpy(ndimage.gaussian_filter(random_images(6, (1, height, width), random), (0, 0, 2, 2)))
    parameters = u.sample(6, (1, height, width), generator=random)
    to_unit = np.array([[2 / width, 0, 1 / width - 1], [0, 2 / height, 1 / height - 1], [0, 0, 1]])
    for image, matrix, got in zip(images, parameters.matrix.double().numpy(), u.apply(images, parameters), strict=True):
        in_pixels = np.linalg.inv(to_unit) @ matrix @ to_unit
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        expected = cv2.warpPerspective(image[0].numpy(), in_pixels, (width, height), flags=flags)
        np.testing.assert_allclose(got[0].numpy(), expected, atol=0.01)
        assert np.abs(image[0].numpy() - expected).max() > 0.1


def displacement(noise: np.ndarray, sigma: float, alpha: float) -> np.ndarray:
    return alpha * np.stack([ndimage.gaussian_filter(axis, sigma, mode="constant", truncate=4.0) for axis in noise])


@pytest.mark.parametrize("padding", [0.0, "edge"])
@pytest.mark.parametrize(("sigma", "alpha"), [(6.0, 38.0), (8.0, 40.0), (1.3, 5.0)])
@pytest.mark.parametrize("size", SIZES)
def test_elastic_is_gaussian_filter_then_map_coordinates(size, sigma, alpha, padding, random):
    u = apac.Elastic(sigma=sigma, alpha=alpha, padding=padding)
    images = random_images(3, (2, *size), random)
    parameters = u.sample(3, (2, *size), generator=random)
    y, x = np.indices(size)
    result = u.apply(images, parameters)
    for image, noise, got in zip(images.numpy(), parameters.noise.double().numpy(), result, strict=True):
        dx, dy = displacement(noise, sigma, alpha)
        np.testing.assert_allclose(got.numpy(), interpolate(image, x + dx, y + dy, padding), atol=ROUNDING)


@pytest.mark.parametrize("size", SIZES)
def test_scale_shift_shows_the_patch_at_its_corner_with_step_one_over_s(size, random):
    u = apac.ScaleShift()
    images = random_images(5, (3, *size), random)
    parameters = u.sample(5, (3, *size), generator=random)
    rows, columns = np.indices(size)
    for image, s, corner, got in zip(
        images.numpy(), parameters.scale.tolist(), parameters.corner.tolist(), u.apply(images, parameters), strict=True
    ):
        x, y = corner[0] + (columns + 0.5) / s - 0.5, corner[1] + (rows + 0.5) / s - 0.5
        np.testing.assert_allclose(got.numpy(), interpolate(image, x, y, "edge"), atol=ROUNDING)


def test_flip_is_numpy_flip_of_the_columns(random):
    images = random_images(40, (3, 5, 8), random)
    parameters = apac.Flip(0.5).sample(40, (3, 5, 8), generator=random)
    expected = [np.flip(i, -1) if f else i for i, f in zip(images.numpy(), parameters.flipped, strict=True)]
    np.testing.assert_allclose(apac.Flip(0.5).apply(images, parameters).numpy(), np.stack(expected), atol=ROUNDING)
    assert 5 < int(parameters.flipped.sum()) < 35


@pytest.mark.parametrize("element", [1, 2, 3, 4])
@pytest.mark.parametrize("size", SIZES)
def test_thickness_is_grey_dilation_and_erosion(size, element, random):
    u = apac.Thickness(dilate=0.4, erode=0.4, size=element)
    images = random_images(30, (2, *size), random)
    parameters = u.sample(30, (2, *size), generator=random)
    assert set(parameters.change.tolist()) == {-1, 0, 1}
    oracle = {1: ndimage.grey_dilation, -1: ndimage.grey_erosion, 0: lambda image, size: image}
    for image, change, got in zip(images.numpy(), parameters.change.tolist(), u.apply(images, parameters), strict=True):
        expected = np.stack([oracle[change](channel, size=(element, element)) for channel in image])
        np.testing.assert_array_equal(got.numpy(), expected)


def test_color_is_gamma_then_cast_within_zero_and_one(random):
    u = apac.Color(gamma=(0.4, 2.5), cast=0.2)
    images = random_images(6, (3, 4, 5), random)
    parameters = u.sample(6, (3, 4, 5), generator=random)
    gamma, cast = parameters.gamma.numpy()[:, None, None, None], parameters.cast.numpy()[:, :, None, None]
    np.testing.assert_allclose(
        u.apply(images, parameters).numpy(), np.clip(images.numpy() ** gamma + cast, 0, 1), atol=ROUNDING
    )


def test_the_mnist_preset_is_one_interpolation_at_homography_plus_displacement_then_morphology(random):
    u = apac.presets.mnist()
    images = random_images(12, (1, 28, 28), random)
    parameters = u.sample(12, (1, 28, 28), generator=random)
    projective, elastic, thickness = parameters.parts
    oracle = {1: ndimage.grey_dilation, -1: ndimage.grey_erosion, 0: lambda image, size: image}
    for i, got in enumerate(u.apply(images, parameters).numpy()):
        x, y = homography_coordinates(projective.matrix[i].double().numpy(), 28, 28)
        dx, dy = displacement(elastic.noise[i].double().numpy(), 6.0, 38.0)
        moved = interpolate(images[i].numpy(), x + dx, y + dy, 0.0)
        np.testing.assert_allclose(got[0], oracle[int(thickness.change[i])](moved[0], size=(2, 2)), atol=ROUNDING)


def test_the_cifar10_preset_is_one_interpolation_of_flip_scale_shift_and_displacement(random):
    u = apac.presets.cifar10()
    images = random_images(8, (3, 32, 32), random)
    parameters = u.sample(8, (3, 32, 32), generator=random)
    patch, elastic, flip = parameters.parts
    for i, got in enumerate(u.apply(images, parameters).numpy()):
        rows, columns = np.indices((32, 32))
        columns = 31 - columns if flip.flipped[i] else columns
        dx, dy = displacement(elastic.noise[i].double().numpy(), 8.0, 40.0)
        s, (left, top) = float(patch.scale[i]), patch.corner[i].tolist()
        x, y = left + (columns + 0.5) / s - 0.5 + dx, top + (rows + 0.5) / s - 0.5 + dy
        np.testing.assert_allclose(got, interpolate(images[i].numpy(), x, y, "edge"), atol=ROUNDING)


def test_two_homographies_in_a_compose_act_in_order(random):
    """The first part acts on the image first; its coordinates therefore come last."""
    images = random_images(1, (1, 15, 15), random)
    shift_then_turn = (
        torch.tensor([[1.0, 0, 0.4], [0, 1, 0], [0, 0, 1]]),
        torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]),
    )
    first, second = (apac.Homography().sample(1, (1, 15, 15), generator=random) for _ in range(2))
    first.matrix[0], second.matrix[0] = shift_then_turn
    both = apac.Compose(apac.Homography(), apac.Homography())
    parameters = type(both.sample(1, (1, 15, 15), generator=random))((first, second))
    step = apac.Homography().apply(apac.Homography().apply(images, first), second)
    torch.testing.assert_close(both.apply(images, parameters), step, atol=ROUNDING, rtol=0)
