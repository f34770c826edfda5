"""CPU kernels: a faster equivalent of the torch code.

Images are contiguous (N, C, H·W) arrays. A kernel runs in the calling thread and releases the GIL; `apply_in_tiles`
distributes the images over threads. Kernels are compiled on first use; numba caches the machine code on disk.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

# Fused multiply-add is allowed and the sign of zero ignored; NaN and infinities keep their meaning.
_compiled = njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "nsz"})


@_compiled
def noise(keys: Any, out: Any) -> None:
    """Fill out (n, count) with uniform noise in [-1, 1), one key (n, 2) per row; see `apac.deform.noise`."""
    for i in range(out.shape[0]):
        first, second, row = np.uint32(keys[i, 0]), np.uint32(keys[i, 1]), out[i]
        for j in range(out.shape[1]):
            # numba widens a 32-bit product to 64 bits; keep the lower 32
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
    """Interpolate bilinearly at matrix (n, 3, 3) times the output coordinates plus displacement (n, 2, H·W), then
    apply `thickness` with change (n,).

    Each n is 1 or N. If all are 1, the interpolation weights are computed once for all images.
    """
    number = images.dtype.type
    pixels, stride = height * width, width + 3
    x, y = np.empty(pixels, images.dtype), np.empty(pixels, images.dtype)
    for p in range(pixels):
        x[p], y[p] = number(p % width - (width - 1) / 2), number(p // width - (height - 1) / 2)
    # A border of one pixel before and two after the image, so that all four neighbors always exist.
    padded = np.full((height + 3) * stride, number(background))
    index = np.empty(pixels, np.int32)  # of the upper left neighbor
    right, down = np.empty(pixels, images.dtype), np.empty(pixels, images.dtype)  # distance from it
    zero, one, last_x, last_y = number(0), number(1), number(width + 1), number(height + 1)
    center_x, center_y = number((width - 1) / 2 + 1), number((height - 1) / 2 + 1)
    buffers = _morphology_buffers(images, size, height, width)
    for i in range(images.shape[0]):
        if i == 0 or len(matrix) > 1 or len(displacement) > 1:
            m = matrix[min(i, len(matrix) - 1)]
            m00, m01, m02 = m[0, 0], m[0, 1], m[0, 2]
            m10, m11, m12 = m[1, 0], m[1, 1], m[1, 2]
            m20, m21, m22 = m[2, 0], m[2, 1], m[2, 2]
            d = displacement[min(i, len(displacement) - 1)]
            dx, dy = d[0], d[1]
            for p in range(pixels):
                scale = one / (m20 * x[p] + m21 * y[p] + m22)
                u = (m00 * x[p] + m01 * y[p] + m02) * scale + dx[p] + center_x
                v = (m10 * x[p] + m11 * y[p] + m12) * scale + dy[p] + center_y
                # Outside the border only padding is visible. NaN (0 / 0 in a projective map) is mapped there too.
                u = u if u < last_x else last_x
                v = v if v < last_y else last_y
                u = u if u > zero else zero
                v = v if v > zero else zero
                left, top = np.int32(u), np.int32(v)
                right[p], down[p] = u - number(left), v - number(top)
                index[p] = top * np.int32(stride) + left
        for c in range(images.shape[1]):
            image, result = images[i, c], out[i, c]
            for row in range(height):
                start, inside = row * width, (row + 1) * stride + 1
                for column in range(width):
                    padded[inside + column] = image[start + column]
            if edge:
                _repeat_edge(padded, height, stride)
            for p in range(pixels):
                # unsigned, so that numba does not check for negative indices
                above = np.uint64(index[p])
                below = above + np.uint64(stride)
                upper_left, upper_right = padded[above], padded[above + np.uint64(1)]
                lower_left, lower_right = padded[below], padded[below + np.uint64(1)]
                upper = (one - right[p]) * upper_left + right[p] * upper_right
                lower = (one - right[p]) * lower_left + right[p] * lower_right
                result[p] = (one - down[p]) * upper + down[p] * lower
            _morph(result, change[min(i, len(change) - 1)], size, height, width, buffers)


@_compiled
def _repeat_edge(padded: Any, height: int, stride: int) -> None:
    for row in range(1, height + 1):
        start = row * stride
        padded[start] = padded[start + 1]
        padded[start + stride - 2] = padded[start + stride - 1] = padded[start + stride - 3]
    for column in range(stride):
        padded[column] = padded[stride + column]
        last = padded[height * stride + column]
        padded[(height + 1) * stride + column] = padded[(height + 2) * stride + column] = last


@_compiled
def thickness(images: Any, change: Any, size: int, height: int, width: int, out: Any) -> None:
    """Dilate (change 1) or erode (-1) with a square window; change is (n,), or (1,) for all images."""
    buffers = _morphology_buffers(images, size, height, width)
    for i in range(images.shape[0]):
        for c in range(images.shape[1]):
            out[i, c, :] = images[i, c]
            _morph(out[i, c], change[min(i, len(change) - 1)], size, height, width, buffers)


@_compiled
def _morphology_buffers(images: Any, size: int, height: int, width: int) -> Any:
    return np.empty((3, (height + size - 1) * (width + size - 1)), images.dtype)


@_compiled
def _morph(image: Any, change: int, size: int, height: int, width: int, buffers: Any) -> None:
    """Dilate or erode one channel in place. An even window extends right and down to dilate, left and up to erode."""
    if change == 0 or size == 1:
        return
    before = size // 2 if change < 0 else (size - 1) // 2
    # The border holds values that the extremum never selects, so that no window needs a bounds check.
    stride = width + size - 1
    padded, horizontal, both = buffers[0], buffers[1], buffers[2]  # the image; after the row filter; after both
    padded[:] = -np.inf if change > 0 else np.inf
    for row in range(height):
        start, inside = row * width, (row + before) * stride + before
        for column in range(width):
            padded[inside + column] = image[start + column]
    _extremum(padded[:-1], padded[1:], change, horizontal)
    for step in range(2, size):
        _extremum(horizontal[:-step], padded[step:], change, horizontal)
    _extremum(horizontal[:-stride], horizontal[stride:], change, both)
    for step in range(2, size):
        _extremum(both[: -step * stride], horizontal[step * stride :], change, both)
    for row in range(height):
        start, inside = row * width, row * stride
        for column in range(width):
            image[start + column] = both[inside + column]


@_compiled
def _extremum(a: Any, b: Any, change: int, out: Any) -> None:
    """Write the elementwise maximum, or the minimum if change is -1, to out. NaN propagates, as in torch."""
    if change > 0:
        for p in range(len(a)):
            out[p] = b[p] if (b[p] > a[p]) | (b[p] != b[p]) else a[p]
    else:
        for p in range(len(a)):
            out[p] = b[p] if (b[p] < a[p]) | (b[p] != b[p]) else a[p]
