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
# Rounds as torch does. For parameters: one call takes a fraction of the time of the same operations in torch.
_compiled_exactly = njit(nogil=True, cache=True, error_model="numpy")


@_compiled
def noise(keys: Any, out: Any) -> None:
    """Fill out (n, count) with uniform noise in [-1, 1), one key (n, 2) per row; see `apac.deform.noise`."""
    first_factor, second_factor = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
    for i in range(out.shape[0]):
        first, second, row = np.uint32(keys[i, 0]), np.uint32(keys[i, 1]), out[i]
        for j in range(np.int32(out.shape[1])):
            # numba widens 32-bit operations to 64 bits, which are not vectorized; keep the lower 32 of each
            x = np.uint32(first + np.uint32(j))
            x = np.uint32(np.uint32(x ^ (x >> np.uint32(16))) * first_factor)
            x = np.uint32(np.uint32(x ^ (x >> np.uint32(15))) * second_factor)
            x = np.uint32(x ^ (x >> np.uint32(16)) ^ second)
            x = np.uint32(np.uint32(x ^ (x >> np.uint32(16))) * first_factor)
            x = np.uint32(np.uint32(x ^ (x >> np.uint32(15))) * second_factor)
            x = np.uint32(x ^ (x >> np.uint32(16)))
            row[j] = np.float32(np.int32(x >> np.uint32(8))) * np.float32(2.0**-23) - np.float32(1.0)


@_compiled_exactly
def patches(uniform: Any, low: float, high: float, height: int, width: int) -> None:
    """Turn uniform numbers (n, 3) into scale, left and top of the patches of `ScaleShift`, in place."""
    number = uniform.dtype.type
    for i in range(uniform.shape[0]):
        scale = uniform[i, 0] * number(high - low) + number(low)
        slack = number(1) - number(1) / scale
        uniform[i, 0] = scale
        uniform[i, 1] *= number(width) * slack
        uniform[i, 2] *= number(height) * slack


@_compiled_exactly
def patch_matrices(scale: Any, corner: Any, height: int, width: int, out: Any) -> None:
    """Write the maps (n, 3, 3) of patches with scale (n,) and corner (n, 2) to out, which contains zeros."""
    number = scale.dtype.type
    for i in range(out.shape[0]):
        step = number(1) / scale[i]
        out[i, 0, 0] = out[i, 1, 1] = step
        out[i, 0, 2] = corner[i, 0] + number(width / 2) * (step - number(1))
        out[i, 1, 2] = corner[i, 1] + number(height / 2) * (step - number(1))
        out[i, 2, 2] = number(1)


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
    # A border of one pixel before and two after the image, so that all four neighbors always exist.
    padded = np.full((height + 3) * stride, number(background))
    index = np.empty(pixels, np.int32)  # of the upper left neighbor
    right, down = np.empty(pixels, images.dtype), np.empty(pixels, images.dtype)  # distance from it
    one = number(1)
    buffers = _morphology_buffers(images, size, height, width)
    for i in range(images.shape[0]):
        if i == 0 or len(matrix) > 1 or len(displacement) > 1:
            m, d = matrix[min(i, len(matrix) - 1)], displacement[min(i, len(displacement) - 1)]
            _coordinate(m[0], m[2], d[0], height, width, (width - 1) / 2 + 1, width + 1, right)
            _coordinate(m[1], m[2], d[1], height, width, (height - 1) / 2 + 1, height + 1, down)
            for p in range(pixels):
                left, top = np.int32(right[p]), np.int32(down[p])
                right[p] -= number(left)
                down[p] -= number(top)
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
def _coordinate(
    numerator: Any, denominator: Any, displacement: Any, height: int, width: int, center: float, last: int, out: Any
) -> None:
    """Write one projected and displaced coordinate of each output pixel, counted in the image with its border.

    One coordinate at a time: LLVM does not vectorize loops over more arrays, which could overlap.
    """
    number = out.dtype.type
    zero, one, last, center = number(0), number(1), number(last), number(center)
    a, b, c = numerator[0], numerator[1], numerator[2]
    d, e, f = denominator[0], denominator[1], denominator[2]
    for row in range(height):
        y = number(row - (height - 1) / 2)
        start = row * width
        for column in range(width):
            x = number(np.int32(column)) - number((width - 1) / 2)
            scale = one / (d * x + e * y + f)
            u = (a * x + b * y + c) * scale + displacement[start + column] + center
            # Outside the border only padding is visible. NaN (0 / 0 in a projective map) is mapped there too.
            u = u if u < last else last
            out[start + column] = u if u > zero else zero


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
    return np.empty((2, (height + size - 1) * (width + size - 1)), images.dtype)


@_compiled
def _morph(image: Any, change: int, size: int, height: int, width: int, buffers: Any) -> None:
    """Dilate or erode one channel in place. An even window extends right and down to dilate, left and up to erode."""
    if change == 0 or size == 1:
        return
    before = size // 2 if change < 0 else (size - 1) // 2
    # The border holds values that the extremum never selects, so that no window needs a bounds check.
    stride = width + size - 1
    padded, other = buffers[0], buffers[1]
    padded[:] = -np.inf if change > 0 else np.inf
    for row in range(height):
        start, inside = row * width, (row + before) * stride + before
        for column in range(width):
            padded[inside + column] = image[start + column]
    rows, spare = _window(padded, other, size, 1, change)
    both, _ = _window(rows, spare, size, stride, change)
    for row in range(height):
        start, inside = row * width, row * stride
        for column in range(width):
            image[start + column] = both[inside + column]


@_compiled
def _window(values: Any, spare: Any, size: int, stride: int, change: int) -> Any:
    """Return the extremum over `size` elements, `stride` apart, that start at each element, and a spare buffer.

    The window doubles in each step: the extremum over 2k elements is that of two windows of k elements.
    """
    covered = 1
    while covered < size:
        step = min(covered, size - covered)
        offset = step * stride
        _extremum(values[:-offset], values[offset:], change, spare)
        values, spare = spare, values
        covered += step
    return values, spare


@_compiled
def _extremum(a: Any, b: Any, change: int, out: Any) -> None:
    """Write the elementwise maximum, or the minimum if change is -1, to out. NaN propagates, as in torch."""
    if change > 0:
        for p in range(len(a)):
            out[p] = b[p] if (b[p] > a[p]) | (b[p] != b[p]) else a[p]
    else:
        for p in range(len(a)):
            out[p] = b[p] if (b[p] < a[p]) | (b[p] != b[p]) else a[p]


@_compiled
def color(images: Any, gamma: Any, cast: Any, out: Any) -> None:
    """Write images^gamma + cast, clamped to [0, 1], for float32 images (N, C, H·W), gamma (n,) and cast (n, C).

    n is 1 or N. LLVM vectorizes the power only as plain arithmetic: a call of `powf` for each pixel takes ten times as
    long.
    """
    for i in range(images.shape[0]):
        row = min(i, len(gamma) - 1)
        power = gamma[row]
        for c in range(images.shape[1]):
            image, result, shift = images[i, c], out[i, c], cast[row, c]
            if power == np.float32(1):  # exact, so that gamma 1 without a cast changes nothing
                for p in range(len(image)):
                    result[p] = _clamp(_clamp(image[p]) + shift)
            else:
                for p in range(len(image)):
                    result[p] = _clamp(_power(_clamp(image[p]), power) + shift)


@_compiled
def _clamp(x: Any) -> Any:
    """Clamp to [0, 1]; NaN stays NaN."""
    x = np.float32(1) if x > np.float32(1) else x
    return np.float32(0) if x < np.float32(0) else x


@_compiled
def _power(x: Any, power: Any) -> Any:
    """Return x^power for x in [0, 1] and power > 0, with an absolute error of about 1e-7.

    2^(power · log2 x), with the polynomials of the Cephes library for log(1 + f) and 2^r.
    """
    # x = 2^exponent · (1 + f) with 1 + f between √½ and √2
    subnormal = x < np.float32(2.0**-126)
    bits = np.float32(x * np.float32(2.0**24) if subnormal else x).view(np.int32)
    exponent = np.int32(np.int32(bits - np.int32(0x3F3504F3)) >> np.int32(23))
    f = np.int32(bits - np.int32(exponent << np.int32(23))).view(np.float32) - np.float32(1)
    log = np.float32(7.0376836292e-2)
    log = log * f - np.float32(1.1514610310e-1)
    log = log * f + np.float32(1.1676998740e-1)
    log = log * f - np.float32(1.2420140846e-1)
    log = log * f + np.float32(1.4249322787e-1)
    log = log * f - np.float32(1.6668057665e-1)
    log = log * f + np.float32(2.0000714765e-1)
    log = log * f - np.float32(2.4999993993e-1)
    log = log * f + np.float32(3.3333331174e-1)
    log = f + f * f * (f * log - np.float32(0.5))
    log2 = log * np.float32(1.4426950408889634) + np.float32(exponent)
    log2 = log2 - np.float32(24) if subnormal else log2
    scaled = max(power * log2, np.float32(-126))
    whole = np.floor(scaled + np.float32(0.5))
    r = scaled - whole
    exp = np.float32(1.535336188319500e-4)
    exp = exp * r + np.float32(1.339887440266574e-3)
    exp = exp * r + np.float32(9.618437357674640e-3)
    exp = exp * r + np.float32(5.550332471162809e-2)
    exp = exp * r + np.float32(2.402264791363012e-1)
    exp = exp * r + np.float32(6.931472028550421e-1)
    exp = exp * r + np.float32(1)
    result = np.int32(np.int32(np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32) * exp
    result = result if x > np.float32(0) else np.float32(0)
    return result if x == x else x
