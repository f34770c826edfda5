"""Selective classification: the risk among the images that are most confident, as a function of their share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The errors among the n most confident images, for n = 1 … N. Ties in confidence are averaged over their order."""

    wrong: Tensor  # (N,) float64, expected number of errors among the n most confident images

    @staticmethod
    def of(confidence: Tensor, correct: Tensor) -> RiskCoverage:
        """Rank images by confidence, the most confident first."""
        values, group = (-confidence.double()).unique(return_inverse=True)
        errors = torch.zeros(len(values), dtype=torch.float64).index_add_(0, group, (~correct).double())
        sizes = torch.zeros(len(values), dtype=torch.float64).index_add_(0, group, torch.ones(len(group)).double())
        # Within a group of equal confidence, every order is as likely: its errors are spread evenly.
        return RiskCoverage((errors / sizes).repeat_interleave(sizes.long()).cumsum(dim=0))

    @property
    def coverage(self) -> Tensor:
        """The share of the images that are decided, (N,)."""
        return torch.arange(1, len(self.wrong) + 1, dtype=torch.float64) / len(self.wrong)

    @property
    def risk(self) -> Tensor:
        """The error among the images that are decided, (N,)."""
        return self.wrong / torch.arange(1, len(self.wrong) + 1, dtype=torch.float64)
