"""A drawn, scanned or photographed digit, made to follow MNIST.

MNIST's convention: ink 255 on a ground of 0, the longer side of the digit 20 pixels, and its center of mass at pixel
(14, 14) of 28 × 28.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from apac.errors import InputError

SIDE, DIGIT, CENTER = 28, 20, 14
FAINTEST = 6.0  # of 255: less contrast than this is a blank image
NOISE = 7.0  # standard deviations of the ground: ink stands out by more than this
FULL = 224.0  # of 255: ink that reaches this is not faint
COARSE = 100  # cells along the longer side: a speck of dust vanishes in a cell, a stroke does not

Gray = NDArray[np.float32]


def as_mnist(gray: Gray, *, path: str, size: tuple[int, int]) -> tuple[NDArray[np.uint8], list[str]]:
    """28 × 28 from brightness (H, W) of 0 to 255, and what was done; `path` and `size` are for what is said."""
    ground = _ground(gray)
    border = _border(gray - ground)
    noise = 1.4826 * float(np.median(np.abs(border)))  # the standard deviation, where noise is normal
    lighter, darker = _extreme(gray - ground), _extreme(ground - gray)
    if max(lighter, darker) < max(FAINTEST, NOISE * noise):
        raise InputError(
            f"{path} is blank: nothing on it stands out from the ground; give an image that shows a digit."
        )

    dark_ink = darker > lighter
    if gray.shape == (SIDE, SIDE) and not dark_ink and np.median(_border(gray)) < FAINTEST:
        return gray.round().astype(np.uint8), []

    notes = ["inverted (dark ink on a light ground)"] if dark_ink else []
    ink = ground - gray if dark_ink else gray - ground
    ink, stretched = _stretched(ink, noise, max(lighter, darker))
    if stretched:
        notes.append("contrast stretched")
    digit = _resized(ink, _box(ink))
    notes.append(f"cropped to the ink and resized from {size[0]} × {size[1]}")
    notes.append("centered by mass")
    return _centered(digit), notes


def _border(values: Gray) -> Gray:
    """The values near the edges, where there is hardly ever ink."""
    height, width = values.shape
    depth = max(1, min(height, width) // 40)
    inside = np.zeros((height, width), bool)
    inside[depth : height - depth, depth : width - depth] = True
    return values[~inside]


def _ground(gray: Gray) -> Gray:
    """The brightness without ink, (H, W): the plane nearest to the border by absolute distance.

    A plane follows the light that falls from one side onto a photograph; the absolute distance ignores ink that touches
    the border.
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
    """The largest value but for a few pixels of dust."""
    few = values.size // 10_000
    return float(np.partition(values, values.size - 1 - few, axis=None)[values.size - 1 - few])


def _stretched(ink: Gray, noise: float, extreme: float) -> tuple[Gray, bool]:
    """Ink from 0 to 255, with the noise of the ground cut off below, and whether that changed much."""
    low = 3 * noise
    high = float(np.percentile(ink[ink > extreme / 2], 90))
    stretched: Gray = np.clip((ink - low) / (high - low), 0, 1) * np.float32(255)
    return stretched, low > FAINTEST / 2 or high < FULL


def _box(ink: Gray) -> tuple[int, int, int, int]:
    """Left, upper, right and lower bounds of the ink, found coarsely to leave out dust and then to the pixel."""
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


def _span(values: Gray, least: float) -> tuple[int, int]:
    """First, and one behind the last, of the values above the least."""
    above = np.flatnonzero(values > least)
    return int(above[0]), int(above[-1]) + 1


def _resized(ink: Gray, box: tuple[int, int, int, int]) -> Gray:
    """The box with its longer side at 20 pixels and its aspect kept."""
    width, height = box[2] - box[0], box[3] - box[1]
    ratio = DIGIT / max(width, height)
    size = max(1, round(width * ratio)), max(1, round(height * ratio))
    digit = np.asarray(Image.fromarray(ink).resize(size, Image.Resampling.BICUBIC, box)).clip(0, 255)
    # The strokes of a fine pen fade when a large drawing shrinks: bring them back to full ink.
    faded: Gray = digit * np.float32(255 / digit.max()) if digit.max() < FULL else digit
    return faded


def _centered(digit: Gray) -> NDArray[np.uint8]:
    """28 × 28 with the center of mass in the middle, as near as whole pixels and the whole digit allow."""
    field = np.zeros((SIDE, SIDE), np.uint8)
    corner = []
    for axis, length in enumerate(digit.shape):
        mass = digit.sum(1 - axis)
        middle = float(mass @ np.arange(length)) / float(mass.sum())
        corner.append(min(max(round(CENTER - middle), 0), SIDE - length))
    top, left = corner
    field[top : top + digit.shape[0], left : left + digit.shape[1]] = digit.round().astype(np.uint8)
    return field
