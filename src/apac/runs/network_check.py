"""A check that a network fits the data, before training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from apac.errors import InputError
from apac.training.config import Precision
from apac.training.precision import autocast


@torch.no_grad()
def check_network(network: nn.Module, images: Tensor, classes: int, precision: Precision) -> None:
    """Raise InputError if the network does not fit the data. One pass in evaluation mode changes nothing."""
    shape = tuple(images.shape[1:])
    try:
        with autocast(precision, images.device):
            logits = network.eval()(images)
    except Exception as error:  # a user's module may raise any exception
        types = {weight.dtype for weight in network.parameters() if weight.is_floating_point()}
        if images.dtype not in types and types:
            raise InputError(
                f"the network has weights of type {types.pop()} and the images are {images.dtype}; convert one, for "
                f"example with network.float()."
            ) from error
        reason = str(error).split("\n")[0].rstrip(".")
        lower = "" if precision == "float32" else f' in {precision} (precision="float32" is the default)'
        raise InputError(
            f"the network does not accept images of shape (N, {', '.join(map(str, shape))}){lower}: "
            f"{type(error).__name__}: {reason}."
        ) from error
    if not isinstance(logits, Tensor) or logits.shape != (len(images), classes):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise InputError(f"the network must return logits (N, {classes}), one for each class, got {got}.")
