"""How far the best class is ahead of the second, and how well that is known.

Passes are shared by the classes, so the spread of a margin is not that of its two classes apart: it takes the second
moments of pairs. Those of all pairs would be too many where there are thousands of classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

CONTENDERS = 16  # classes of an image whose pairs are followed, the best of its first pass


@dataclass(frozen=True, eq=False)
class Pairs:
    """Sums over passes for the R best classes of n images, in float64, of what exceeds the first pass: such sums keep
    their digits where values are large and hardly differ."""

    passes: int
    classes: Tensor  # (n, R)
    first: Tensor  # (n, R), the values of the first pass
    sums: Tensor  # (n, R)
    products: Tensor  # (n, R, R)

    @staticmethod
    def init(values: Tensor) -> Pairs:
        """Before the first pass, with its values (n, K)."""
        first, classes = values.topk(min(CONTENDERS, values.shape[1]), dim=1)
        zero = torch.zeros_like(first, dtype=torch.float64)  # (n, R)
        return Pairs(0, classes, first, zero, zero[:, :, None] * zero[:, None])

    def add(self, values: Tensor) -> Pairs:
        """After further passes, (passes, n, K)."""
        passes = len(values)
        excess = values.gather(2, self.classes.expand(passes, -1, -1)) - self.first
        return replace(
            self,
            passes=self.passes + passes,
            sums=self.sums + excess.sum(dim=0),
            products=self.products + excess.permute(1, 2, 0) @ excess.permute(1, 0, 2),
        )

    def error(self, one: Tensor, other: Tensor) -> Tensor:
        """Standard error of the mean difference between two classes of each image, (n,); NaN after a single pass, and
        where a class was not among the best of the first pass."""
        if self.passes < 2:
            return torch.full((len(one),), torch.nan, dtype=torch.float64)
        a, b = self.classes == one[:, None], self.classes == other[:, None]  # (n, R)
        direction = a.double() - b.double()
        squares = torch.einsum("nr,nrs,ns->n", direction, self.products, direction)
        total = (direction * self.sums).sum(dim=1)
        variance = (squares - total.square() / self.passes) / (self.passes - 1)
        error = (variance.clamp(min=0) / self.passes).sqrt()
        return error.where(a.any(dim=1) & b.any(dim=1), torch.nan)
