"""How passes combine into one value per class: by the product of probabilities or by their sum.

Only this file distinguishes the two while a decision is made; evaluation and tuning compare them by name.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol, TypeVar

from torch import Tensor

Combine = Literal["product", "sum"]
Value = TypeVar("Value")


class Combination(Protocol):
    """What ranks the classes."""

    quantity: str  # what the mean of all passes is a mean of
    max_difference: float  # largest possible difference between two classes in one pass

    def values(self, log_probabilities: Tensor) -> Tensor:
        """Return the values that are averaged over passes, for log-probabilities (..., K)."""

    def select(self, of_logarithms: Value, of_probabilities: Value) -> Value:
        """Return the statistic that belongs to this combination."""


class Product:
    """The paper's rule: the product of probabilities ranks as the mean of their logarithms."""

    quantity = "log-probability"
    max_difference = math.inf

    def values(self, log_probabilities: Tensor) -> Tensor:
        return log_probabilities

    def select(self, of_logarithms: Value, of_probabilities: Value) -> Value:
        return of_logarithms


class Sum:
    """The rule that the paper compares with, "summation instead of product": the mean of probabilities."""

    quantity = "probability"
    max_difference = 1.0

    def values(self, log_probabilities: Tensor) -> Tensor:
        return log_probabilities.exp()

    def select(self, of_logarithms: Value, of_probabilities: Value) -> Value:
        return of_probabilities


COMBINATIONS: dict[Combine, Combination] = {"product": Product(), "sum": Sum()}
