"""A scikit-learn estimator that trains in a moment."""

from __future__ import annotations

from typing import Any

import apac

# The same computation on arrays that numpy aligns differently in memory: the matrix products may sum in another order,
# and training amplifies that.
ROUNDING = 1e-6

# scikit-learn makes the same exception for its own stochastic estimators; test_sample_weights.py has the statistical
# test.
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": "batches are drawn at random: weighting a sample equals repeating "
    "it in expectation only"
}


def quick(**more: Any) -> apac.ApacClassifier:
    arguments: dict[str, Any] = {"epochs": 5, "random_state": 0, "rule": apac.FixedPasses(8)} | more
    return apac.ApacClassifier(**arguments)
