"""Checks of the parameters that `apply` is given."""

from __future__ import annotations

from torch import Tensor

from apac import trees
from apac.errors import InputError
from apac.trees import Tree


def prepare(images: Tensor, parameters: Tree) -> Tree:
    """Check the arguments of `apply` and move the parameters to the device of the images."""
    if images.ndim != 4 or not images.is_floating_point() or not images.shape[1:].numel():
        got = f"{images.dtype} {tuple(images.shape)}"
        raise InputError(f"images must be a floating-point tensor of shape (N, C, H, W), got {got}.")
    n = trees.size(parameters)
    if n not in (1, images.shape[0]):
        raise InputError(f"{len(images)} images need {len(images)} parameters, or 1 for all of them, got {n}.")
    return trees.to_device(parameters, images.device)


def check_same_shape(images: Tensor, parameters: Tensor) -> None:
    """Raise an error if the parameters were sampled for images of another shape."""
    if parameters.shape[1:] != images.shape[1:]:
        raise InputError(
            f"these parameters were sampled for the shape {tuple(parameters.shape[1:])}; sample them for "
            f"{tuple(images.shape[1:])}."
        )
