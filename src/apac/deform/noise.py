"""Uniform noise as a hash of a key and an index, independent of the device and the number of threads.

A torch generator produces its numbers sequentially in one thread, which would take longer than the rest of an elastic
distortion. The generator therefore only provides a key of two 32-bit integers per image, and element j of the noise is
a hash of the key and j.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from apac.deform.cpu import kernels_for
from apac.inference.workers import worker_pool
from apac.randomness import scramble

_MASK_32_BITS = 0xFFFFFFFF
_NUMBERS_PER_TASK = 512 * 1568


def uniform_noise(n: int, shape: tuple[int, ...], *, generator: torch.Generator) -> Tensor:
    """Return noise in [-1, 1), (n, *shape) float32."""
    keys = torch.randint(1 << 32, (n, 2), generator=generator, device=generator.device)
    kernels = kernels_for(keys)
    if kernels is None:
        return _noise_torch(keys, math.prod(shape)).view(n, *shape)
    result = torch.empty(n, *shape, dtype=torch.float32, device="cpu")
    key_rows, out = keys.numpy(), result.numpy().reshape(n, math.prod(shape))
    rows = max(1, _NUMBERS_PER_TASK // max(1, out.shape[1]))
    if n <= rows:
        kernels.noise(key_rows, out)
        return result
    tasks = [slice(start, start + rows) for start in range(0, n, rows)]
    with worker_pool() as workers:
        list(workers.map(lambda task: kernels.noise(key_rows[task], out[task]), tasks))
    return result


def _noise_torch(keys: Tensor, count: int) -> Tensor:
    x = (keys[:, :1] + torch.arange(count, device=keys.device)) & _MASK_32_BITS  # (n, count) int64
    x = scramble(scramble(x) ^ keys[:, 1:])
    return (x >> 8).float() * 2.0**-23 - 1
