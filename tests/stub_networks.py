"""Networks without weights, for tests that prescribe what a network returns."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def numbered_images(count: int) -> Tensor:
    """Return images of one pixel, whose value is the number of the image."""
    return torch.arange(count, dtype=torch.float32).view(-1, 1, 1, 1)


def network_from_table(rows: list[list[float]]) -> Callable[[Tensor], Tensor]:
    """Return a network that gives numbered image i the logits of row i, in every pass."""
    table = torch.tensor(rows, dtype=torch.float64)
    return lambda images: table[images[:, 0, 0, 0].round().long()]
