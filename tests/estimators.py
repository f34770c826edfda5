"""A scikit-learn estimator that trains in a moment."""

from __future__ import annotations

from typing import Any

import apac

# The same computation on arrays that numpy aligns differently in memory: the matrix products may sum in another order,
# and training amplifies that.
ROUNDING = 1e-6


def quick(**more: Any) -> apac.ApacClassifier:
    arguments: dict[str, Any] = {"epochs": 5, "random_state": 0, "rule": apac.FixedPasses(8)} | more
    return apac.ApacClassifier(**arguments)
