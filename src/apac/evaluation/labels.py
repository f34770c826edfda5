"""Validation of the labels of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from apac.errors import InputError


def validate_labels(images: Tensor, labels: Tensor | Sequence[int]) -> Tensor:
    """Return the labels (N,). Raise InputError unless there is one integer per image, and at least one image."""
    if not isinstance(images, Tensor):
        raise InputError(f"images must be a floating-point tensor (N, C, H, W), got {type(images).__name__}.")
    try:
        labels = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"labels must be integers, one per image, got a {type(labels).__name__}: {reason}.") from error
    integers = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    if labels.ndim != 1 or len(labels) != len(images) or not integers:
        raise InputError(
            f"labels must be integers of shape ({len(images)},), one per image, got {labels.dtype} "
            f"{tuple(labels.shape)}."
        )
    if not len(images):
        raise InputError("images must hold at least one image to evaluate.")
    return labels.to(torch.int64)


def validate_classes(labels: Tensor, classes: int) -> None:
    """Raise InputError unless every label is a class of the network."""
    low, high = int(labels.min()), int(labels.max())
    if not 0 <= low <= high < classes:
        raise InputError(
            f"labels must be between 0 and {classes - 1} for a network of {classes} classes, got {low} to {high}."
        )
