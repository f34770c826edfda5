"""CPU kernels: the same results as the torch path, only faster.

Images come as contiguous (N, C, H·W) arrays. Each kernel works in the calling thread and lets others run; `by_tiles`
gives every thread its own images. Compiled when first used, once for each machine: numba keeps the result on disk.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

# Fused multiplication and addition, and a blind eye to the sign of zero; NaN and infinities stay what they are.
_compiled = njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "nsz"})


@_compiled
def noise(keys: Any, out: Any) -> None:
    """Uniform numbers in [-1, 1), (n, count), each row from its own key (n, 2); see `apac.deform.noise`."""
    for i in range(out.shape[0]):
        first, second, row = np.uint32(keys[i, 0]), np.uint32(keys[i, 1]), out[i]
        for j in range(out.shape[1]):
            # numba widens a product of 32 bits; only its lower 32 are meant
            x = np.uint32(first + np.uint32(j))
            x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D))
            x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B))
            x = np.uint32(x ^ (x >> np.uint32(16)) ^ second)
            x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D))
            x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B))
            x = np.uint32(x ^ (x >> np.uint32(16)))
            row[j] = np.float32(x >> np.uint32(8)) * np.float32(2.0**-23) - np.float32(1.0)


@_compiled
def warp(
    images: Any,
    matrix: Any,
    displacement: Any,
    height: int,
    width: int,
    background: float,
    edge: bool,
    change: Any,
    size: int,
    out: Any,
) -> None:
    """Bilinear interpolation at matrix (n, 3, 3) of the output's coordinates plus displacement (n, 2, H·W), and then
    the `thickness` of change (n,).

    Any n may be 1, for all images: places and weights that are the same for all are computed once.
    """
    number = images.dtype.type
    pixels, across = height * width, width + 3
    x, y = np.empty(pixels, images.dtype), np.empty(pixels, images.dtype)
    for p in range(pixels):
        x[p], y[p] = number(p % width - (width - 1) / 2), number(p // width - (height - 1) / 2)
    # A border of one pixel around the image, two after it, so that four neighbors are always there.
    padded = np.full((height + 3) * across, number(background))
    place = np.empty(pixels, np.int32)  # of the upper left of the four
    right, down = np.empty(pixels, images.dtype), np.empty(pixels, images.dtype)  # how far from it
    zero, one, last_x, last_y = number(0), number(1), number(width + 1), number(height + 1)
    middle_x, middle_y = number((width - 1) / 2 + 1), number((height - 1) / 2 + 1)
    room = _room(images, size, height, width)
    for i in range(images.shape[0]):
        if i == 0 or len(matrix) > 1 or len(displacement) > 1:
            m = matrix[min(i, len(matrix) - 1)]
            m00, m01, m02 = m[0, 0], m[0, 1], m[0, 2]
            m10, m11, m12 = m[1, 0], m[1, 1], m[1, 2]
            m20, m21, m22 = m[2, 0], m[2, 1], m[2, 2]
            aside = displacement[min(i, len(displacement) - 1)]
            aside_x, aside_y = aside[0], aside[1]
            for p in range(pixels):
                scale = one / (m20 * x[p] + m21 * y[p] + m22)
                u = (m00 * x[p] + m01 * y[p] + m02) * scale + aside_x[p] + middle_x
                v = (m10 * x[p] + m11 * y[p] + m12) * scale + aside_y[p] + middle_y
                # Nothing is seen beyond the border; NaN, where a projective map divides 0 by 0, goes there too.
                u = u if u < last_x else last_x
                v = v if v < last_y else last_y
                u = u if u > zero else zero
                v = v if v > zero else zero
                left, top = np.int32(u), np.int32(v)
                right[p], down[p] = u - number(left), v - number(top)
                place[p] = top * np.int32(across) + left
        for c in range(images.shape[1]):
            image, result = images[i, c], out[i, c]
            for row in range(height):
                start, inside = row * width, (row + 1) * across + 1
                for column in range(width):
                    padded[inside + column] = image[start + column]
            if edge:
                _repeat_edge(padded, height, across)
            for p in range(pixels):
                # unsigned, or numba would look for negative indices
                above = np.uint64(place[p])
                below = above + np.uint64(across)
                a, b = padded[above], padded[above + np.uint64(1)]
                d, e = padded[below], padded[below + np.uint64(1)]
                upper = (one - right[p]) * a + right[p] * b
                lower = (one - right[p]) * d + right[p] * e
                result[p] = (one - down[p]) * upper + down[p] * lower
            _morph(result, change[min(i, len(change) - 1)], size, height, width, room)


@_compiled
def _repeat_edge(padded: Any, height: int, across: int) -> None:
    for row in range(1, height + 1):
        start = row * across
        padded[start] = padded[start + 1]
        padded[start + across - 2] = padded[start + across - 1] = padded[start + across - 3]
    for column in range(across):
        padded[column] = padded[across + column]
        last = padded[height * across + column]
        padded[(height + 1) * across + column] = padded[(height + 2) * across + column] = last


@_compiled
def thickness(images: Any, change: Any, size: int, height: int, width: int, out: Any) -> None:
    """Gray dilation (change 1) or erosion (-1) by a square window, of change (n,), or (1,) for all images."""
    room = _room(images, size, height, width)
    for i in range(images.shape[0]):
        for c in range(images.shape[1]):
            out[i, c, :] = images[i, c]
            _morph(out[i, c], change[min(i, len(change) - 1)], size, height, width, room)


@_compiled
def _room(images: Any, size: int, height: int, width: int) -> Any:
    return np.empty((3, (height + size - 1) * (width + size - 1)), images.dtype)


@_compiled
def _morph(image: Any, change: int, size: int, height: int, width: int, room: Any) -> None:
    """One channel in place. For an even size dilation looks right and down, erosion left and up."""
    if change == 0 or size == 1:
        return
    before = size // 2 if change < 0 else (size - 1) // 2
    # Around the image lies what no window picks, so that windows need not know where it ends.
    line = width + size - 1
    padded, across, both = room[0], room[1], room[2]  # as it is; after the window's columns; after its rows too
    padded[:] = -np.inf if change > 0 else np.inf
    for row in range(height):
        start, inside = row * width, (row + before) * line + before
        for column in range(width):
            padded[inside + column] = image[start + column]
    _pick(padded[:-1], padded[1:], change, across)
    for step in range(2, size):
        _pick(across[:-step], padded[step:], change, across)
    _pick(across[:-line], across[line:], change, both)
    for step in range(2, size):
        _pick(both[: -step * line], across[step * line :], change, both)
    for row in range(height):
        start, inside = row * width, row * line
        for column in range(width):
            image[start + column] = both[inside + column]


@_compiled
def _pick(one: Any, other: Any, change: int, out: Any) -> None:
    """The larger of each two, or the smaller if change is -1; NaN wins, as in torch."""
    if change > 0:
        for p in range(len(one)):
            out[p] = other[p] if (other[p] > one[p]) | (other[p] != other[p]) else one[p]
    else:
        for p in range(len(one)):
            out[p] = other[p] if (other[p] < one[p]) | (other[p] != other[p]) else one[p]
