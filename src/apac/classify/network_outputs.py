"""From images to log-probabilities: call the network in batches and validate what it returns."""

from __future__ import annotations

import logging
import math
from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn

from apac.errors import InputError
from apac.inference.engine import Network

Outputs = Literal["logits", "probabilities", "log-probabilities"]

SMALLEST = math.log(torch.finfo(torch.float64).tiny)  # log-probability
CHECKED = 8  # images whose outputs are compared with probabilities

CLASSES_VARY = "the network must return the same number of classes for all images; it returns different numbers."


def log_probabilities(network: Network, images: Tensor, batch_size: int, outputs: Outputs) -> Tensor:
    """Return the log-probabilities of images, (N, K), in float64 on the CPU."""
    weight = _first_weight(network)
    returned: list[Tensor] = []
    for batch in images.split(batch_size):
        returned.append(network(batch if weight is None else batch.to(weight.device, weight.dtype)))
        _validate(returned[-1], len(batch), outputs)
        if returned[-1].shape[1] != returned[0].shape[1]:
            raise InputError(CLASSES_VARY)
    logits = torch.cat(returned).cpu()
    if outputs == "logits" and _look_like_probabilities(logits[:CHECKED]):
        _warn_about_probabilities()
    return to_logits(logits, outputs).log_softmax(dim=1)


def to_logits(returned: Tensor, outputs: Outputs) -> Tensor:
    """Convert what a network returns, (N, K), to logits in float64.

    Log-probabilities are valid logits. A probability of 0 counts as the smallest normal number of float32. A
    log-probability of -inf, or that of a logit of -inf, which masks a class, counts as the logarithm of the smallest
    normal number of float64.
    """
    exact = returned.double()
    if outputs == "logits":
        masked = exact.isneginf()
        masked &= ~masked.all(dim=1, keepdim=True)
        return exact.log_softmax(dim=1).masked_fill(masked, SMALLEST) if masked.any() else exact
    probabilities = exact if outputs == "probabilities" else exact.exp()
    total = probabilities.sum(dim=1)
    # Types of low precision round each probability by more than 1e-3.
    tolerance = max(1e-3, 2 * torch.finfo(returned.dtype).eps) if returned.is_floating_point() else 0.0
    if (probabilities < 0).any() or ((total - 1).abs() > tolerance).any():
        worst = float(total[(total - 1).abs().nan_to_num().argmax()])
        raise InputError(
            f"the network does not return {outputs}: the smallest is {float(probabilities.min()):.3g}, and those of "
            f'one image sum to {worst:.4g}; set outputs to what it returns, for example outputs="logits".'
        )
    if outputs == "log-probabilities":
        return exact.clamp_min(SMALLEST)
    return probabilities.clamp_min(torch.finfo(torch.float32).tiny).log()


def _look_like_probabilities(logits: Tensor) -> bool:
    """Return whether no value is below 0 and the values of each image sum to 1, as after a softmax."""
    sums = logits.double().sum(dim=1)
    return bool(len(logits) and (logits >= 0).all() and ((sums - 1).abs() < 1e-3).all())


@cache
def _warn_about_probabilities() -> None:
    """Warn once."""
    logging.getLogger("apac").warning(
        "the logits look like probabilities: none is below 0, and those of an image sum to 1. If the network ends in a "
        'softmax, pass outputs="probabilities".'
    )


def _validate(returned: object, images: int, outputs: Outputs) -> None:
    binary = {
        "logits": "one logit z, return the logits (0, z): torch.cat([0 * z, z], dim=1)",
        "probabilities": "one probability p, return both: torch.cat([1 - p, p], dim=1)",
        "log-probabilities": "one log-probability, return those of both classes",
    }[outputs]
    expected = f"the network must return {outputs} of shape (N, classes)"
    if not isinstance(returned, Tensor):
        advice = "wrap it, for example by lambda images: network(images).logits or network(images)[0]"
        raise InputError(f"{expected}, got {type(returned).__name__}; {advice}.")
    if returned.ndim == 1 and len(returned) == images:
        raise InputError(f"{expected}, got one number for each image; for a binary classifier with {binary}.")
    if returned.ndim != 2 or len(returned) != images:
        raise InputError(f"{expected}, got {tuple(returned.shape)} for {images} images.")
    if returned.shape[1] < 2:
        raise InputError(
            f"{expected} with at least two classes, got {returned.shape[1]}; for a binary classifier with {binary}."
        )
    if returned.is_complex():
        raise InputError(f"the network must return real numbers, got {returned.dtype}.")


def _first_weight(network: Network) -> Tensor | None:
    """Return a weight of a module, whose device and type its input needs; None for any other callable."""
    weights = [*network.parameters(), *network.buffers()] if isinstance(network, nn.Module) else []
    return next((weight for weight in weights if weight.is_floating_point()), None)
