"""What the X of an estimator holds, and its conversion to samples (N, C, H, W)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from apac.data.normalize import Standardization
from apac.deform.base import INPUT_TYPES, Deformation, InputType
from apac.errors import InputError

Array = NDArray[np.float64]

SHAPES: dict[InputType, str] = {
    "vectors": "(N, features)",
    "series": "(N, channels, time steps)",
    "images": "(N, channels, height, width)",
}
MAX_CHANNELS = 4  # of images (gray, RGB, RGBA); an axis that is longer may be the height of an image
ROUNDING = 1e-6  # of pixels, beyond 0 … 1


def infer_input_type(X: Array, deformation: Deformation, told: InputType | None) -> InputType:
    """Return what X holds: as told, or by its dimensions and the deformation. Refuse what remains ambiguous."""
    if told is not None and not (isinstance(told, str) and told in INPUT_TYPES):
        raise InputError(f"input_type must be one of {', '.join(map(repr, INPUT_TYPES))} or None, got {told!r}.")
    if not deformation.input_types:
        raise InputError(f"the parts of {deformation!r} are made for different data; use parts for the same data.")
    input_type = told or _by_dimensions(X, deformation)
    if X.ndim not in {"vectors": (2,), "series": (3,), "images": (3, 4)}[input_type]:
        raise InputError(f"{input_type} must be an array {SHAPES[input_type]}, got {X.shape}; reshape X.")
    if input_type not in deformation.input_types:
        suited = deformation.input_types[0]
        raise InputError(
            f"{deformation!r} is made for {' and '.join(deformation.input_types)}, but X of shape {X.shape} holds "
            f"{input_type}; if these are {suited}, reshape X to {SHAPES[suited]}, otherwise choose another deformation."
        )
    if input_type == "images":
        _check_channels_first(X)
    return input_type


def _by_dimensions(X: Array, deformation: Deformation) -> InputType:
    if X.ndim == 2:
        return "vectors"
    if X.ndim == 4:
        return "images"
    if X.ndim != 3:
        raise InputError(f"X must be {', '.join(SHAPES.values())}, got {X.shape}.")
    _, height, width = X.shape
    if deformation.input_types == ("series",) or height <= MAX_CHANNELS:
        return "series"
    advice = f"reshape gray images to (N, 1, {height}, {width}) by X[:, None]"
    if "series" in deformation.input_types:
        advice += ', or set input_type="series" for time series'
    raise InputError(
        f"X of shape {X.shape} may hold gray images or series of {height} channels and {width} time steps; {advice}."
    )


def _check_channels_first(X: Array) -> None:
    if X.ndim == 4 and X.shape[3] in (1, 3, 4) and min(X.shape[1:3]) > MAX_CHANNELS:
        raise InputError(
            f"images must have the channels first, (N, channels, height, width), got {X.shape}; move the channels: "
            f"X.transpose(0, 3, 1, 2)."
        )


def check_pixels(X: Array) -> None:
    """Raise InputError unless the pixels are in 0 … 1, the range that deformations of images expect."""
    low, high = float(X.min()), float(X.max())
    if low < -ROUNDING:
        raise InputError(
            f"images must have pixels from 0 to 1, got {low:.4g} to {high:.4g}; pass them as they are before a "
            f"standardization, which the estimator does itself after the deformation."
        )
    if high > 1 + ROUNDING:
        raise InputError(
            f"images must have pixels from 0 to 1, got {low:.4g} to {high:.4g}; divide by 255, or by the largest value "
            f"that a pixel can have."
        )


@dataclass(frozen=True, eq=False)
class SampleMaker:
    """Converts X to the samples (N, C, H, W) to deform: standardized features or channels, or pixels in 0 … 1."""

    input_type: InputType
    scaler: StandardScaler | None  # one column per feature or channel; None for images

    @staticmethod
    def fit(X: Array, weights: Array | None, input_type: InputType) -> SampleMaker:
        if input_type == "images":
            return SampleMaker(input_type, None)
        rows = _rows(X)
        repeated = None if weights is None else weights.repeat(len(rows) // len(X))
        return SampleMaker(input_type, StandardScaler().fit(rows, sample_weight=repeated))

    def __call__(self, X: Array) -> Tensor:
        if self.scaler is None:
            check_pixels(X)
            return torch.tensor(X if X.ndim == 4 else X[:, None])  # a copy, because torch warns about read-only arrays
        scaled = self.scaler.transform(_rows(X))  # (N, features) or (N · steps, channels)
        if X.ndim == 2:
            return torch.from_numpy(scaled)[:, None, None, :]
        n, channels, steps = X.shape
        return torch.from_numpy(scaled.reshape(n, steps, channels)).transpose(1, 2)[:, :, None, :].contiguous()


def _rows(X: Array) -> Array:
    """Return X with one column per feature, or per channel for time series (N, channels, steps)."""
    return X if X.ndim == 2 else X.transpose(0, 2, 1).reshape(-1, X.shape[1])


def fit_standardization(images: Tensor, weights: Array | None, dtype: torch.dtype) -> Standardization:
    """Return the standardization of images (N, C, H, W) with weights (N,)."""
    share = (
        torch.full((len(images),), 1 / len(images)) if weights is None else torch.from_numpy(weights / weights.sum())
    )
    pixels = images.double()
    mean = share.double() @ pixels.mean(dim=(2, 3))  # (C,)
    variance = share.double() @ (pixels - mean[:, None, None]).square().mean(dim=(2, 3))
    # A channel whose deviation is below a quarter of a gray level is constant.
    return Standardization(mean.to(dtype), variance.sqrt().clamp_min(1e-3).to(dtype))
