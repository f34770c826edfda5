"""Uniform noise from keys: as many numbers as there are pixels, on any device and any number of threads the same.

A torch generator makes its numbers one after another, in one thread; the noise of an elastic distortion would take
longer than all the rest of a deformation. So the generator gives a key of two 32-bit numbers for each Θ, and number j
of its noise is a hash of the key and j.
"""

from __future__ import annotations

import torch
from torch import Tensor

from apac.deform.cpu import kernels
from apac.inference.workers import worker_pool
from apac.randomness import scramble

_32_BITS = 0xFFFFFFFF
_ROWS = 512  # for a thread at a time


def uniform_noise(n: int, count: int, *, generator: torch.Generator) -> Tensor:
    """Numbers in [-1, 1), (n, count) float32."""
    keys = torch.randint(1 << 32, (n, 2), generator=generator, device=generator.device)
    fast = kernels(keys)
    if fast is None:
        return _by_torch(keys, count)
    out = torch.empty(n, count, device="cpu")
    if n <= _ROWS:
        fast.noise(keys.numpy(), out.numpy())
        return out
    parts = zip(keys.split(_ROWS), out.split(_ROWS), strict=True)
    with worker_pool() as threads:
        list(threads.map(lambda part: fast.noise(part[0].numpy(), part[1].numpy()), parts))
    return out


def _by_torch(keys: Tensor, count: int) -> Tensor:
    x = (keys[:, :1] + torch.arange(count, device=keys.device)) & _32_BITS  # (n, count) int64
    x = scramble(scramble(x) ^ keys[:, 1:])
    return (x >> 8).float() * 2.0**-23 - 1
