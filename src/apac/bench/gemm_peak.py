"""The peak of the machine: a large matrix product."""

from __future__ import annotations

from collections.abc import Callable

import torch

SIZE = 2048


def matrix_product() -> Callable[[], float]:
    """Return a contestant that multiplies large float32 matrices with torch on all cores and counts operations."""
    left, right = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)

    def work() -> float:
        for _ in range(4):
            left @ right
        return 4 * 2 * SIZE**3

    return work
