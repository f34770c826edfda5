"""The weights of the samples of an estimator, from sample and class weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array
from sklearn.utils.class_weight import compute_class_weight

from apac.errors import InputError


def combined_weights(
    sample_weight: ArrayLike | None, class_weight: dict[Any, float] | str | None, y: NDArray[Any]
) -> NDArray[np.float64] | None:
    """Return sample_weight times the weight of the class of each sample, (N,); None if there are neither."""
    if sample_weight is None and class_weight is None:
        return None
    weights = np.ones(len(y))
    if sample_weight is not None:
        weights = _validate("sample_weight", check_array(sample_weight, ensure_2d=False, dtype=np.float64), len(y))
    if class_weight is not None:
        weights = weights * _weights_of_classes(class_weight, y, weights)
        if not weights.any():
            raise InputError(
                "the products of sample_weight and class_weight are all zero; at least one class needs both above 0."
            )
    return weights


def _weights_of_classes(
    class_weight: dict[Any, float] | str, y: NDArray[Any], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    classes, encoded = np.unique(y, return_inverse=True)
    balanced = isinstance(class_weight, str) and class_weight == "balanced"
    if not (balanced or isinstance(class_weight, dict)):
        raise InputError(
            f'class_weight must be a dictionary of weights by class label, "balanced" or None, got {class_weight!r}.'
        )
    if balanced:
        totals = np.bincount(encoded, weights)
        # A class without weight stays without.
        per_class = np.divide(weights.sum(), len(classes) * totals, out=np.zeros_like(totals), where=totals > 0)
    else:
        per_class = compute_class_weight(class_weight, classes=classes, y=y)
    return _validate("class_weight", per_class, len(classes))[encoded]


def _validate(name: str, weights: NDArray[Any], n: int) -> NDArray[np.float64]:
    if weights.shape != (n,):
        raise InputError(f"{name} must have one weight for each sample, ({n},), got {weights.shape}.")
    if not (np.isfinite(weights).all() and (weights >= 0).all() and (weights > 0).any()):
        raise InputError(f"the weights of {name} must be finite numbers of at least 0, and not all zero.")
    return weights.astype(np.float64)
