"""The uniform noise: the same from the kernel and from torch, uniform and uncorrelated."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from apac.deform import cpu, kernels, noise
from apac.randomness import generator
from kernel_paths import torch_threads

EXTREME_KEYS = torch.tensor(
    [[0, 0], [0xFFFFFFFF, 0xFFFFFFFF], [0xFFFFFFFF, 0], [0, 0xFFFFFFFF], [1 << 31, 1 << 31], [0x7FFFFFFF, 5]]
)


@pytest.mark.parametrize("count", [0, 1, 7, 1568])
def test_the_kernel_and_torch_give_the_same_bits(count, random):
    keys = torch.cat([EXTREME_KEYS, torch.randint(1 << 32, (40, 2), generator=random)])
    out = torch.empty(len(keys), count)
    kernels.noise(keys.numpy(), out.numpy())
    assert torch.equal(out, noise._noise_torch(keys, count))
    assert ((out >= -1) & (out < 1)).all()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("n", [1, 512, 513])
def test_noise_is_the_same_with_and_without_the_kernel_and_with_any_number_of_threads(n, threads):
    with torch_threads(threads):
        fast = noise.uniform_noise(n, (50,), generator=generator(0, "test", n))
    with cpu.torch_path():
        slow = noise.uniform_noise(n, (50,), generator=generator(0, "test", n))
    assert torch.equal(fast, slow)
    assert fast.dtype == torch.float32
    assert len(fast.unique(dim=0)) == n


def test_noise_is_the_hash_of_key_and_index():
    def scramble(x: int) -> int:
        x = (x ^ (x >> 16)) * 0x7FEB352D & 0xFFFFFFFF
        x = (x ^ (x >> 15)) * 0x846CA68B & 0xFFFFFFFF
        return x ^ (x >> 16)

    def number(first: int, second: int, j: int) -> float:
        return (scramble(scramble((first + j) & 0xFFFFFFFF) ^ second) >> 8) / (1 << 23) - 1

    out = torch.empty(len(EXTREME_KEYS), 5)
    kernels.noise(EXTREME_KEYS.numpy(), out.numpy())
    assert out.tolist() == [[number(a, b, j) for j in range(5)] for a, b in EXTREME_KEYS.tolist()]


def test_noise_is_uniform(random):
    values = noise.uniform_noise(300, (784,), generator=random).double().numpy()
    assert stats.kstest(values.ravel(), stats.uniform(-1, 2).cdf).pvalue > 1e-3
    by_index = [stats.kstest(column, stats.uniform(-1, 2).cdf).pvalue for column in values.T[:200]]
    assert stats.kstest(by_index, "uniform").pvalue > 1e-3


def correlation(a: Tensor, b: Tensor) -> float:
    """The absolute correlation, in standard errors under independence."""
    return abs(float(np.corrcoef(a.flatten(), b.flatten())[0, 1])) * a.numel() ** 0.5


def test_noise_of_neighboring_keys_and_pixels_is_not_correlated(random):
    first = torch.randint(1 << 32, (1, 1), generator=random)
    counted = torch.arange(400)[:, None]
    fixed = torch.full_like(counted, 12345)
    for keys in (torch.cat([fixed, counted], 1), torch.cat([(first + counted * 1568) % (1 << 32), fixed], 1)):
        out = torch.empty(400, 784)
        kernels.noise(keys.numpy(), out.numpy())
        assert correlation(out[:-1], out[1:]) < 4
        for distance in (1, 2, 28, 392):
            assert correlation(out[:, :-distance], out[:, distance:]) < 4
            assert correlation(out[:, :-distance].abs(), out[:, distance:].abs()) < 4
        assert correlation(out[:-1, 1:], out[1:, :-1]) < 4
