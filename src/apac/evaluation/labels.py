"""Validation of the labels of an evaluation."""

from __future__ import annotations

from torch import Tensor

from apac.errors import InputError


def validate_labels(images: Tensor, labels: Tensor) -> None:
    """Raise InputError unless there is one integer label per image, and at least one image."""
    if labels.ndim != 1 or len(labels) != len(images) or labels.is_floating_point():
        raise InputError(
            f"labels must be integers of shape ({len(images)},), one per image, got {labels.dtype} "
            f"{tuple(labels.shape)}."
        )
    if not len(images):
        raise InputError("images must hold at least one image to evaluate.")


def validate_classes(labels: Tensor, classes: int) -> None:
    """Raise InputError unless every label is a class of the network."""
    low, high = int(labels.min()), int(labels.max())
    if not 0 <= low <= high < classes:
        raise InputError(
            f"labels must be between 0 and {classes - 1} for a network of {classes} classes, got {low} to {high}."
        )
