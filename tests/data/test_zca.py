"""Normalization, compared with numpy and with formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apac import data
from apac.data import zca
from apac.data.normalize import Scaling, normalization_from
from apac.data.zca import Whitening
from apac.errors import InputError


def correlated(count: int, shape: tuple[int, int, int], seed: int = 0) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    size = int(np.prod(shape))
    mixed = generator.normal(size=(count, size)) @ generator.normal(size=(size, size)) * 20 / np.sqrt(size) + 120
    return torch.from_numpy(mixed.clip(0, 255).astype(np.uint8).reshape(count, *shape))


def by_svd(images: torch.Tensor, epsilon: float, scale: float) -> np.ndarray:
    """ZCA from the singular values of the data instead of the covariance, with the matrix in half precision."""
    x = images.flatten(1).numpy().astype(np.float64) / 255 / scale
    x -= x.mean(0)
    _, singular, right = np.linalg.svd(x, full_matrices=False)
    gains = 1 / np.sqrt(singular**2 / len(x) + epsilon)
    matrix = ((right.T * gains) @ right / scale).astype(np.float16).astype(np.float64)
    return np.asarray(scale * x @ matrix)


@pytest.mark.parametrize(("epsilon", "scale"), [(0.1, 0.25), (0.01, 1.0)])
def test_whitening_agrees_with_singular_values(epsilon: float, scale: float) -> None:
    images = correlated(3000, (3, 4, 5))  # more than one chunk
    whitened = zca.fit(images, epsilon=epsilon, scale=scale).apply(images)
    assert whitened.shape == images.shape and whitened.dtype == torch.float32
    np.testing.assert_allclose(whitened.flatten(1).numpy(), by_svd(images, epsilon, scale), atol=2e-4)


def test_whitening_agrees_with_singular_values_on_real_digits() -> None:
    digits = data.load("mnist-5k").train_images[..., ::2, ::2]
    np.testing.assert_allclose(
        zca.fit(digits).apply(digits[:500]).flatten(1).numpy(), by_svd(digits, 0.1, 0.25)[:500], atol=2e-4
    )


def test_the_whitened_set_has_the_covariance_that_theory_gives() -> None:
    images = correlated(2500, (1, 4, 4))
    x = images.flatten(1).numpy() / 255 / 0.25
    variances, directions = np.linalg.eigh(np.cov(x.T, bias=True))
    whitened = zca.fit(images).apply(images).flatten(1).numpy()
    expected = directions @ np.diag(variances / (variances + 0.1)) @ directions.T
    np.testing.assert_allclose(np.cov(whitened.T, bias=True), expected, atol=1e-3)  # of half precision
    np.testing.assert_allclose(whitened.mean(0), 0, atol=1e-4)


def test_two_pixels_match_the_closed_form() -> None:
    # Equal variances a and covariance b: eigenvectors (1, 1) and (1, −1), eigenvalues a + b and a − b.
    pixels = torch.tensor([[100, 100], [200, 200], [130, 170], [170, 130]], dtype=torch.uint8)
    fitted = zca.fit(pixels.view(4, 1, 1, 2), epsilon=0.1, scale=0.25)
    unit = (255 * 0.25) ** 2
    a, b = (50**2 * 2 + 20**2 * 2) / 4 / unit, (50**2 * 2 - 20**2 * 2) / 4 / unit
    plus, minus = 1 / np.sqrt(a + b + 0.1), 1 / np.sqrt(a - b + 0.1)
    expected = np.array([[plus + minus, plus - minus], [plus - minus, plus + minus]]) / 2 / 0.25
    # a unit in the last place of half precision, as the eigenvectors may round either way
    np.testing.assert_allclose(fitted.matrix.numpy(), expected.astype(np.float16), rtol=2**-10)
    np.testing.assert_allclose(fitted.mean.numpy(), 150 / 255, rtol=1e-6)


def test_the_matrix_is_symmetric_and_fitting_is_bitwise_reproducible() -> None:
    images = correlated(1500, (3, 4, 4))
    first, second = zca.fit(images), zca.fit(images)
    assert torch.equal(first.matrix, first.matrix.T)
    assert torch.equal(first.matrix, second.matrix) and torch.equal(first.mean, second.mean)


def test_a_few_images_are_whitened_to_the_same_bits_as_each_alone() -> None:
    images = correlated(zca.FEW, (3, 10, 10))
    whitening = zca.fit(images)
    together = whitening.apply(images)
    for count in range(1, zca.FEW):
        assert torch.equal(whitening.apply(images[:count]), together[:count])
    # more images are whitened by another product, which rounds differently: a sum of 300 float32 products of about 1
    torch.testing.assert_close(whitening.apply(images.repeat(2, 1, 1, 1))[: zca.FEW], together, atol=1e-4, rtol=0)


def test_an_image_is_whitened_the_same_alone_and_in_a_batch() -> None:
    images = correlated(1500, (3, 4, 4))
    fitted = zca.fit(images)
    torch.testing.assert_close(fitted.apply(images[-1:]), fitted.apply(images)[-1:], atol=1e-5, rtol=0)


@pytest.mark.parametrize("count", [1, 2])
def test_pixels_that_never_change_stay_finite(count: int) -> None:
    images = torch.full((count, 1, 3, 3), 200, dtype=torch.uint8)
    torch.testing.assert_close(zca.fit(images).apply(images), torch.zeros(count, 1, 3, 3), atol=1e-5, rtol=0)


@given(st.integers(0, 5), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6))
def test_scaled_pixels_keep_their_shape_and_are_between_0_and_1(n: int, c: int, h: int, w: int) -> None:
    images = torch.randint(0, 256, (n, c, h, w), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    scaled = Scaling().apply(images)
    assert scaled.shape == images.shape and scaled.dtype == torch.float32
    assert ((scaled >= 0) & (scaled <= 1)).all()
    assert torch.equal((scaled * 255).round().to(torch.uint8), images)


def test_a_normalization_is_restored_from_its_kind_and_tensors() -> None:
    images = correlated(50, (1, 3, 3))
    for fitted in (Scaling(), zca.fit(images)):
        restored = normalization_from(fitted.kind, fitted.tensors())
        assert torch.equal(restored.apply(images), fitted.apply(images))


def test_a_whitening_is_stored_in_a_quarter_of_its_size_without_loss() -> None:
    fitted = zca.fit(correlated(500, (3, 8, 8)))
    stored = fitted.tensors()
    assert sum(t.numel() * t.element_size() for t in stored.values()) < 0.27 * fitted.matrix.numel() * 4
    again = zca.Whitening.from_tensors(**stored)
    assert torch.equal(again.matrix, fitted.matrix) and torch.equal(again.mean, fitted.mean)
    with pytest.raises(InputError, match=r"got the shapes \(192,\) and \(18527,\)"):
        zca.Whitening.from_tensors(stored["mean"], stored["triangle"][1:])


def test_a_whitening_too_strong_for_half_precision_is_rejected() -> None:
    images = torch.full((4, 1, 2, 2), 200, dtype=torch.uint8)
    with pytest.raises(InputError, match=r"epsilon=1e-12 and scale=0.25 is too strong; give a larger epsilon"):
        zca.fit(images, epsilon=1e-12)


def test_an_empty_batch_is_whitened_to_an_empty_batch() -> None:
    fitted = zca.fit(correlated(50, (1, 3, 3)))
    assert fitted.apply(torch.empty(0, 1, 3, 3, dtype=torch.uint8)).shape == (0, 1, 3, 3)


def test_images_that_cannot_be_normalized_are_rejected_in_one_sentence() -> None:
    images = correlated(50, (1, 3, 3))
    fitted = zca.fit(images)
    for call in (
        lambda: zca.fit(images[:0]),
        lambda: zca.fit(images.float()),
        lambda: zca.fit(images, epsilon=0.0),
        lambda: zca.fit(images, scale=float("nan")),
        lambda: fitted.apply(images[..., :2]),
        lambda: fitted.apply(images.float()),
        lambda: Scaling().apply(images[0]),
        lambda: Whitening(torch.zeros(3), torch.zeros(3, 4)),
        lambda: normalization_from("pca", {}),
        lambda: normalization_from("zca", {"mean": torch.zeros(3)}),
    ):
        with pytest.raises(InputError, match=r"\.$"):
            call()


@pytest.mark.data
def test_cifar10_is_whitened_to_the_covariance_that_theory_gives() -> None:
    images = data.load("cifar10").train_images
    whitened = zca.fit(images).apply(images).flatten(1).double()
    x = images.flatten(1).double() / 255 / 0.25
    variances, directions = np.linalg.eigh(np.cov(x.numpy().T, bias=True))
    expected = (directions * (variances / (variances + 0.1))) @ directions.T
    # Half precision keeps the matrix to 5e-4 of each number.
    np.testing.assert_allclose((whitened.T @ whitened / len(images)).numpy(), expected, atol=1e-3)
