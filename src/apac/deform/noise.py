"""Uniform noise as a hash of a key and an index, independent of the device and the number of threads.

A torch generator produces its numbers sequentially in one thread, which would take longer than the rest of an elastic
distortion. The generator therefore only provides a key of two 32-bit integers per image, and element j of the noise is
a hash of the key and j.
"""

from __future__ import annotations

import torch
from torch import Tensor

from apac.deform.cpu import kernels_for
from apac.inference.workers import worker_pool
from apac.randomness import scramble

_MASK_32_BITS = 0xFFFFFFFF
_NUMBERS_PER_TASK = 512 * 1568


def uniform_noise(n: int, count: int, *, generator: torch.Generator) -> Tensor:
    """Return noise in [-1, 1), (n, count) float32."""
    keys = torch.randint(1 << 32, (n, 2), generator=generator, device=generator.device)
    kernels = kernels_for(keys)
    if kernels is None:
        return _noise_torch(keys, count)
    out = torch.empty(n, count, device="cpu")
    rows = max(1, _NUMBERS_PER_TASK // max(1, count))
    if n <= rows:
        kernels.noise(keys.numpy(), out.numpy())
        return out
    tasks = zip(keys.split(rows), out.split(rows), strict=True)
    with worker_pool() as workers:
        list(workers.map(lambda task: kernels.noise(task[0].numpy(), task[1].numpy()), tasks))
    return out


def _noise_torch(keys: Tensor, count: int) -> Tensor:
    x = (keys[:, :1] + torch.arange(count, device=keys.device)) & _MASK_32_BITS  # (n, count) int64
    x = scramble(scramble(x) ^ keys[:, 1:])
    return (x >> 8).float() * 2.0**-23 - 1
