"""CPU kernels for the gradients of a convolution that is followed by max pooling and ReLU.

Arrays are in channels-last order: inputs x (n, H·W·C), weights w (O, KH, KW·C), pooled outputs y (n, P, O) with their
gradients dy, and for each of them the position in the convolution's output that pooling has chosen, index (n, P, O).
`offsets` is where the window of a position begins in the values of an image, and `row_stride` the distance between the
rows of an image. There are no bounds checks: every index must be a position.

Each pooled output is one term: its gradient times a window of the input, for the gradient of the weights, or times the
weights, for the gradient of the input. The terms of the same sum are collected first and added four at a time, because
reading and writing the sum takes longer than the products.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

GROUP = 4  # images whose terms are collected together, so that their inputs stay in the cache

# Fused multiply-add is allowed and the sign of zero ignored; NaN and infinities keep their meaning.
_compiled = njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "nsz"})


@_compiled
def _weight_gradient(dy: Any, y: Any, index: Any, offsets: Any, x: Any, row_stride: int, dw: Any, dbias: Any) -> None:
    """Add the gradients of a group of images, see `weight_gradient`."""
    images, places, outputs = dy.shape
    rows, length = dw.shape[1], dw.shape[2]
    values = x.reshape(-1)
    factors = np.empty((outputs, images * places + 4), np.float32)
    starts = np.empty((outputs, images * places + 4), np.int64)
    counts = np.zeros(outputs, np.int64)
    for i in range(images):
        for p in range(places):
            for o in range(outputs):
                # written always and counted if it is a term: faster than a branch that cannot be predicted
                k = counts[o]
                factors[o, k] = dy[i, p, o]
                starts[o, k] = i * x.shape[1] + offsets[index[i, p, o]]
                counts[o] = k + (dy[i, p, o] != 0 and not y[i, p, o] <= 0)
    for o in range(outputs):
        if counts[o] == 0:
            continue
        dbias[o] += factors[o, : counts[o]].sum()
        factors[o, counts[o] : counts[o] + 4] = 0
        starts[o, counts[o] : counts[o] + 4] = starts[o, 0]
        for row in range(rows):
            total = dw[o, row]
            for k in range(0, counts[o], 4):
                f1, f2, f3, f4 = factors[o, k], factors[o, k + 1], factors[o, k + 2], factors[o, k + 3]
                s1, s2 = starts[o, k] + row * row_stride, starts[o, k + 1] + row * row_stride
                s3, s4 = starts[o, k + 2] + row * row_stride, starts[o, k + 3] + row * row_stride
                x1, x2 = values[s1 : s1 + length], values[s2 : s2 + length]
                x3, x4 = values[s3 : s3 + length], values[s4 : s4 + length]
                for j in range(length):
                    total[j] += (f1 * x1[j] + f2 * x2[j]) + (f3 * x3[j] + f4 * x4[j])


@_compiled
def weight_gradient(dy: Any, y: Any, index: Any, offsets: Any, x: Any, row_stride: int, dw: Any, dbias: Any) -> None:
    """Add the gradients of the weights to dw (O, KH, KW·C) and of the biases to dbias (O,)."""
    for i in range(0, len(x), GROUP):
        j = i + GROUP
        _weight_gradient(dy[i:j], y[i:j], index[i:j], offsets, x[i:j], row_stride, dw, dbias)


@_compiled
def short_weight_gradient(
    dy: Any, y: Any, index: Any, offsets: Any, x: Any, row_stride: int, rows: int, length: int, dw: Any, dbias: Any
) -> None:
    """Do the same for windows of a few values, with dw (O, 1, values), which may have more values than a window.

    Loops over their rows would take longer than the products, so each window is copied to consecutive values first.
    """
    values = dw.shape[2]
    windows = np.zeros((GROUP, len(offsets) * values), np.float32)
    starts = np.arange(len(offsets)) * values
    for i in range(0, len(x), GROUP):
        j = min(i + GROUP, len(x))
        for image in range(i, j):
            for position in range(len(offsets)):
                for row in range(rows):
                    start, to = offsets[position] + row * row_stride, starts[position] + row * length
                    for k in range(length):
                        windows[image - i, to + k] = x[image, start + k]
        _weight_gradient(dy[i:j], y[i:j], index[i:j], starts, windows[: j - i], 0, dw, dbias)


@_compiled
def input_gradient(dy: Any, y: Any, index: Any, offsets: Any, w: Any, row_stride: int, dx: Any) -> None:
    """Add the gradient of the inputs to dx (n, H·W·C)."""
    images, places, outputs = dy.shape
    rows, length = w.shape[1], w.shape[2]
    positions = len(offsets)
    # Pooling windows that do not overlap choose a position at most once for each output.
    factors = np.empty((positions, outputs + 4), np.float32)
    channels = np.empty((positions, outputs + 4), np.int64)
    counts = np.empty(positions, np.int64)
    for i in range(images):
        counts[:] = 0
        for p in range(places):
            for o in range(outputs):
                position = index[i, p, o]
                k = counts[position]
                factors[position, k] = dy[i, p, o]
                channels[position, k] = o
                counts[position] = k + (dy[i, p, o] != 0 and not y[i, p, o] <= 0)
        for position in range(positions):
            if counts[position] == 0:
                continue
            factors[position, counts[position] : counts[position] + 4] = 0
            channels[position, counts[position] : counts[position] + 4] = channels[position, 0]
            for row in range(rows):
                start = offsets[position] + row * row_stride
                total = dx[i, start : start + length]
                for k in range(0, counts[position], 4):
                    f1, f2 = factors[position, k], factors[position, k + 1]
                    f3, f4 = factors[position, k + 2], factors[position, k + 3]
                    w1, w2 = w[channels[position, k], row], w[channels[position, k + 1], row]
                    w3, w4 = w[channels[position, k + 2], row], w[channels[position, k + 3], row]
                    for j in range(length):
                        total[j] += (f1 * w1[j] + f2 * w2[j]) + (f3 * w3[j] + f4 * w4[j])
