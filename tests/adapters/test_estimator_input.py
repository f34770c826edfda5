"""What an estimator takes X for, what it refuses, and where it standardizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import apac
from estimators import ROUNDING, quick
from kinds import KINDS

Y = np.arange(20) % 2
RANDOM = np.random.default_rng(0)
VECTORS, SERIES = RANDOM.random((20, 64)), RANDOM.random((20, 2, 32))
IMAGES, COLOR_IMAGES = RANDOM.random((20, 1, 8, 8)), RANDOM.random((20, 3, 8, 8))
FOR_IMAGES = [
    apac.Homography(),
    apac.Elastic(),
    apac.ScaleShift(),
    apac.Flip(),
    apac.Shift(),
    apac.Thickness(),
    apac.Color(),
    apac.presets.mnist(),
    apac.PerClass({0: apac.Flip()}, default=apac.Jitter(), classes=2),
]
FOR_SERIES = [apac.TimeShift(), apac.TimeWarp(), apac.Amplitude(), apac.Compose(apac.TimeShift(), apac.Jitter())]
FOR_ALL = [apac.Jitter(), apac.FeatureDropout(), apac.Compose()]


def refuse(sentence: str, X: np.ndarray, **parameters: object) -> None:
    with pytest.raises(apac.InputError, match=sentence) as raised:
        quick(**parameters).fit(X, Y)
    assert "\n" not in str(raised.value)


def test_every_kind_says_for_which_data_it_is_made():
    expected = {
        **dict.fromkeys(FOR_IMAGES, ("images",)),
        **dict.fromkeys(FOR_SERIES, ("series",)),
        **dict.fromkeys(FOR_ALL, ("vectors", "series", "images")),
    }
    for deformation, input_types in expected.items():
        assert deformation.input_types == input_types
    assert {type(kind) for kind in KINDS} <= {type(kind) for kind in expected}
    assert apac.Compose(apac.TimeShift(), apac.Flip()).input_types == ()
    assert apac.from_callable(torch.sin).input_types == ("vectors", "series", "images")


@pytest.mark.parametrize("deformation", FOR_IMAGES, ids=repr)
def test_flat_rows_and_series_are_no_images(deformation):
    sentence = r"is made for images, but X of shape \(20, 64\) holds vectors; .* \(N, channels, height, width\)"
    refuse(sentence, VECTORS, deformation=deformation)
    refuse(r"holds series; if these are images, reshape", SERIES, deformation=deformation)


@pytest.mark.parametrize("deformation", FOR_SERIES, ids=repr)
def test_flat_rows_and_images_are_no_series(deformation):
    refuse(
        r"holds vectors; if these are series, reshape X to \(N, channels, time steps\)",
        VECTORS,
        deformation=deformation,
    )
    refuse(r"is made for series, but X of shape \(20, 1, 8, 8\) holds images", IMAGES, deformation=deformation)


def test_transforms_of_other_libraries_are_for_images():
    v2 = pytest.importorskip("torchvision.transforms.v2")
    refuse(
        r"from_torchvision\(RandomAffine\) is made for images",
        VECTORS,
        deformation=apac.from_torchvision(v2.RandomAffine(9)),
    )


def test_an_x_that_may_hold_gray_images_or_series_needs_the_input_type():
    X = IMAGES[:, 0]
    for deformation in (None, apac.Jitter(), apac.Compose()):
        refuse(
            r"\(20, 8, 8\) may hold gray images or series .* by X\[:, None\], or set input_type=\"series\"",
            X,
            deformation=deformation,
        )
    refuse(r"reshape gray images to \(N, 1, 8, 8\) by X\[:, None\]\.$", X, deformation=apac.Homography())
    assert quick(input_type="series").fit(X, Y).network_.get_submodule("1").in_features == 64
    told = quick(deformation=apac.Homography(), input_type="images").fit(X, Y)
    reshaped = quick(deformation=apac.Homography()).fit(IMAGES, Y)
    np.testing.assert_allclose(told.predict_proba(X), reshaped.predict_proba(IMAGES), atol=ROUNDING)
    refuse(r"is made for images, but X .* holds series", X, deformation=apac.Homography(), input_type="series")
    for for_series in FOR_SERIES:
        quick(deformation=for_series, epochs=1).fit(X, Y)


def test_data_of_other_dimensions_are_rejected():
    refuse(r"series must be an array \(N, channels, time steps\), got \(20, 64\)", VECTORS, input_type="series")
    refuse(r"images must be an array \(N, channels, height, width\), got \(20, 64\)", VECTORS, input_type="images")
    refuse(r"X must be \(N, features\), .*, got \(20, 1, 2, 2, 2\)", np.zeros((20, 1, 2, 2, 2)))
    refuse(
        "parts of Compose.* are made for different data",
        IMAGES,
        deformation=apac.Compose(apac.TimeShift(), apac.Flip()),
    )


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels_last_are_rejected(channels):
    refuse(r"channels first.*move the channels: X.transpose\(0, 3, 1, 2\)", RANDOM.random((20, 8, 9, channels)))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_pixels_beyond_0_and_1_are_rejected_in_fit_and_predict(dtype):
    pixels = (255 * IMAGES).astype(dtype)
    refuse("pixels from 0 to 1, got .* to 2.*; divide by 255", pixels)
    refuse("pixels from 0 to 1, got -.*; pass them as they are before a standardization", (IMAGES - 0.5) / 0.3)
    fitted = quick().fit(pixels / 255, Y)
    with pytest.raises(apac.InputError, match="divide by 255"):
        fitted.predict(pixels)
    quick(epochs=1).fit(IMAGES > 0.5, Y)  # binary images


class Recorder(nn.Sequential):
    """A linear network that keeps its inputs."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))
        self.inputs: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        self.inputs.append(images)
        return super().forward(images)  # type: ignore[no-any-return]


def plain_inputs(fitted: apac.ApacClassifier, X: np.ndarray) -> Tensor:
    """What the network sees in the plain prediction."""
    network = fitted.network_
    assert isinstance(network, Recorder)
    network.inputs.clear()
    fitted.predict_plain(X)
    return network.inputs[0]


def test_images_are_standardized_after_the_deformation():
    X = COLOR_IMAGES * [[[0.2]], [[0.5]], [[1.0]]]
    fitted = quick(deformation=apac.Compose(), network=Recorder, rule=apac.FixedPasses(1)).fit(X, Y)
    expected = StandardScaler().fit_transform(np.moveaxis(X, 1, -1).reshape(-1, 3)).reshape(20, 8, 8, 3)
    # float32 inputs of up to 2 standard deviations
    np.testing.assert_allclose(plain_inputs(fitted, X), np.moveaxis(expected, -1, 1), atol=1e-5)


@pytest.mark.parametrize(
    "neutral", [apac.Color(gamma=(1, 1), cast=0), apac.Flip(0), apac.Jitter(0), apac.Homography(0)], ids=repr
)
def test_a_deformation_that_changes_nothing_gives_the_same_classifier(neutral):
    X = 0.1 + 0.3 * COLOR_IMAGES  # far from zero mean and unit deviation, where a clamp to 0 … 1 would destroy much
    without = quick(deformation=apac.Compose()).fit(X, Y)
    fitted = quick(deformation=neutral).fit(X, Y)
    # Homography interpolates at coordinates that are rounded in float32; training amplifies that.
    np.testing.assert_allclose(fitted.predict_proba(X), without.predict_proba(X), atol=1e-3)
    np.testing.assert_allclose(fitted.loss_curve_, without.loss_curve_, atol=1e-3)


def test_a_pipeline_that_changes_the_channels_is_standardized_as_the_network_sees_it():
    v2 = pytest.importorskip("torchvision.transforms.v2")
    u = apac.from_torchvision(v2.RandomHorizontalFlip(), after=v2.Grayscale())
    fitted = quick(deformation=u, network=Recorder, epochs=1, rule=apac.FixedPasses(1)).fit(COLOR_IMAGES, Y)
    seen = plain_inputs(fitted, COLOR_IMAGES)
    assert seen.shape == (20, 1, 8, 8)
    assert abs(float(seen.mean())) < 1e-5 and float(seen.std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_noise_on_vectors_and_series_is_in_standard_deviations():
    for X in (VECTORS, SERIES):
        fitted = quick(deformation=apac.Jitter(0.5)).fit(X, Y)
        moved = quick(deformation=apac.Jitter(0.5)).fit(1000 * X - 7, Y)
        np.testing.assert_allclose(moved.predict_proba(1000 * X - 7), fitted.predict_proba(X), atol=ROUNDING)
