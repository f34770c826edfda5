"""Convert a drawn, scanned or photographed digit to the format of MNIST.

In MNIST, ink is 255 on a background of 0, the longer side of the digit is 20 pixels, and the center of mass is at pixel
(14, 14) of 28 × 28.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from apac.errors import InputError

SIDE, DIGIT, CENTER = 28, 20, 14
FAINTEST = 6.0  # of 255: an image with less contrast is blank
NOISE = 7.0  # ink differs from the background by more standard deviations than this
FULL = 224.0  # of 255: ink of at least this value is not faint
COARSE = 100  # cells along the longer side: a speck of dust vanishes in a cell, a stroke does not

Gray = NDArray[np.float32]


class NoDigit(InputError):
    """A picture in which nothing stands out from the background."""


def as_mnist(gray: Gray, *, path: str, size: tuple[int, int]) -> tuple[NDArray[np.uint8], list[str]]:
    """Convert brightness (H, W) in [0, 255] to 28 × 28, and return it with notes on the conversion.

    `path` and `size` appear in the error message and the notes.
    """
    background = _background(gray)
    border = _border(gray - background)
    noise = 1.4826 * float(np.median(np.abs(border)))  # the standard deviation, if the noise is Gaussian
    lighter, darker = _extreme(gray - background), _extreme(background - gray)
    if max(lighter, darker) < max(FAINTEST, NOISE * noise):
        raise NoDigit(f"{path} shows no digit: nothing stands out from the background; give an image of one digit.")

    dark_ink = darker > lighter
    if gray.shape == (SIDE, SIDE) and not dark_ink and np.median(_border(gray)) < FAINTEST:
        return gray.round().astype(np.uint8), []

    notes = ["inverted (dark ink on a light background)"] if dark_ink else []
    ink = background - gray if dark_ink else gray - background
    ink, stretched = _stretched(ink, noise, max(lighter, darker))
    if stretched:
        notes.append("contrast stretched")
    digit = _resized(ink, _box(ink))
    notes.append(f"cropped to the ink and resized from {size[0]} × {size[1]}")
    notes.append("centered by mass")
    return _centered(digit), notes


def _border(values: Gray) -> Gray:
    """Return the values near the edges, where ink is rare."""
    height, width = values.shape
    depth = max(1, min(height, width) // 40)
    inside = np.zeros((height, width), bool)
    inside[depth : height - depth, depth : width - depth] = True
    return values[~inside]


def _background(gray: Gray) -> Gray:
    """Return the background brightness (H, W), a plane fitted to the border by least absolute deviations.

    A plane models uneven lighting of a photograph. Least absolute deviations are robust to ink at the border.
    """
    height, width = gray.shape
    rows, columns = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    at = [_border(axis.astype(np.float32)) for axis in (rows, columns)]
    design = np.stack([np.ones_like(at[0]), *at], axis=1).astype(np.float64)  # (n, 3)
    values = _border(gray).astype(np.float64)
    plane = np.array([np.median(values), 0.0, 0.0])
    for _ in range(20):  # iteratively reweighted least squares
        weights = 1 / np.maximum(np.abs(values - design @ plane), 0.5)
        weighted = design * weights[:, None]
        plane = np.linalg.lstsq(weighted.T @ design, weighted.T @ values, rcond=None)[0]
    fitted: Gray = (plane[0] + plane[1] * rows + plane[2] * columns).astype(np.float32)
    return fitted


def _extreme(values: Gray) -> float:
    """Return the largest value, except for a few outliers such as dust."""
    few = values.size // 10_000
    return float(np.partition(values, values.size - 1 - few, axis=None)[values.size - 1 - few])


def _stretched(ink: Gray, noise: float, extreme: float) -> tuple[Gray, bool]:
    """Return ink in [0, 255] without background noise, and whether the contrast changed visibly."""
    low = 3 * noise
    high = float(np.percentile(ink[ink > extreme / 2], 90))
    stretched: Gray = np.clip((ink - low) / (high - low), 0, 1) * np.float32(255)
    return stretched, low > FAINTEST / 2 or high < FULL


def _box(ink: Gray) -> tuple[int, int, int, int]:
    """Return the bounding box of the ink: left, upper, right, lower. A coarse grid, tried first, ignores dust."""
    height, width = ink.shape
    cell = max(1, -(-max(height, width) // COARSE))
    coarse = np.asarray(Image.fromarray(ink).reduce(cell))
    top, bottom = _span(coarse.max(1), 0.2 * coarse.max())
    left, right = _span(coarse.max(0), 0.2 * coarse.max())
    upper, leftmost = max(top - 1, 0) * cell, max(left - 1, 0) * cell
    window = ink[upper : (bottom + 1) * cell, leftmost : (right + 1) * cell]
    top, bottom = _span(window.max(1), 0.05 * window.max())
    left, right = _span(window.max(0), 0.05 * window.max())
    return leftmost + left, upper + top, leftmost + right, upper + bottom


def _span(values: Gray, minimum: float) -> tuple[int, int]:
    """Return the half-open index range of the values above the minimum."""
    above = np.flatnonzero(values > minimum)
    return int(above[0]), int(above[-1]) + 1


def _resized(ink: Gray, box: tuple[int, int, int, int]) -> Gray:
    """Resize the box to 20 pixels on its longer side, and preserve the aspect ratio."""
    width, height = box[2] - box[0], box[3] - box[1]
    ratio = DIGIT / max(width, height)
    size = max(1, round(width * ratio)), max(1, round(height * ratio))
    digit = np.asarray(Image.fromarray(ink).resize(size, Image.Resampling.BICUBIC, box)).clip(0, 255)
    # The strokes of a fine pen fade when a large drawing is reduced: restore full ink.
    faded: Gray = digit * np.float32(255 / digit.max()) if digit.max() < FULL else digit
    return faded


def _centered(digit: Gray) -> NDArray[np.uint8]:
    """Center the digit by mass in 28 × 28 pixels, as far as possible without cropping it."""
    canvas = np.zeros((SIDE, SIDE), np.uint8)
    corner = []
    for axis, length in enumerate(digit.shape):
        mass = digit.sum(1 - axis)
        middle = float(mass @ np.arange(length)) / float(mass.sum())
        corner.append(min(max(round(CENTER - middle), 0), SIDE - length))
    top, left = corner
    canvas[top : top + digit.shape[0], left : left + digit.shape[1]] = digit.round().astype(np.uint8)
    return canvas
