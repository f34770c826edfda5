"""The standard error of the margin between the two best classes.

Classes share their passes, so the standard error of a difference does not follow from those of the two classes: it
takes the second moments of pairs. With thousands of classes, the moments of all pairs would not fit in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

CONTENDERS = 16  # classes per image whose pairs are tracked: the best of the first pass


@dataclass(frozen=True, eq=False)
class MarginMoments:
    """Sums over passes for the R best classes of the first pass, for n images, in float64.

    They are sums of differences from the first pass, which keeps their digits where values are large and hardly vary.
    """

    passes: int
    classes: Tensor  # (n, R)
    first: Tensor  # (n, R), the values of the first pass
    sums: Tensor  # (n, R)
    products: Tensor  # (n, R, R)

    @staticmethod
    def zero(values: Tensor) -> MarginMoments:
        """Return the sums before the first pass, whose values (n, K) select the classes."""
        first, classes = values.topk(min(CONTENDERS, values.shape[1]), dim=1)
        n, r = first.shape
        sums, products = (torch.zeros(n, *shape, dtype=torch.float64, device=first.device) for shape in ((r,), (r, r)))
        return MarginMoments(0, classes, first, sums, products)

    def add(self, values: Tensor) -> MarginMoments:
        """Return the sums after more passes, (passes, n, K)."""
        passes = len(values)
        excess = values.gather(2, self.classes.expand(passes, -1, -1)) - self.first
        return replace(
            self,
            passes=self.passes + passes,
            sums=self.sums + excess.sum(dim=0),
            products=self.products + excess.permute(1, 2, 0) @ excess.permute(1, 0, 2),
        )

    def error(self, one: Tensor, other: Tensor) -> Tensor:
        """Return the standard error of the mean difference between two classes of each image, (n,).

        It is NaN after a single pass, and where a class was not among the best of the first pass.
        """
        if self.passes < 2:
            return torch.full((len(one),), torch.nan, dtype=torch.float64)
        is_one, is_other = self.classes == one[:, None], self.classes == other[:, None]  # (n, R)
        direction = is_one.double() - is_other.double()
        squares = torch.einsum("nr,nrs,ns->n", direction, self.products, direction)
        total = (direction * self.sums).sum(dim=1)
        variance = (squares - total.square() / self.passes) / (self.passes - 1)
        error = (variance.clamp(min=0) / self.passes).sqrt()
        return error.where(is_one.any(dim=1) & is_other.any(dim=1), torch.nan)
