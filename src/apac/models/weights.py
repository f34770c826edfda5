"""Initial weights of a network: which tensor of a file is which of the network."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path

from torch import nn

from apac.errors import InputError
from apac.validation import quoted

COUNTER = "num_batches_tracked"  # of batch normalization; old files lack it, and no computation uses it

OF_RUNS = ("network.", "normalization.")

Shape = tuple[int, ...]


def last_layer(network: nn.Module) -> str | None:
    """Return the name of the last linear layer, the classifier, or None if there is none."""
    names = [name for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    return names[-1] if names else None


def match_weights(network: nn.Module, shapes: Mapping[str, Shape], path: Path) -> dict[str, str]:
    """Return which tensor of a file with these shapes each tensor of the network starts from, by their names.

    The last linear layer keeps its own weights if the file has another number of classes, which is logged. Otherwise
    all tensors must fit; the error names the first that does not.
    """
    names = _without_prefix(shapes)  # of the file, by those of the network
    stored = {name: shapes[names[name]] for name in names}
    own = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    head = last_layer(network)
    fresh = _other_classes(own, stored, head)
    for name, shape in own.items():
        if name in fresh or (name not in stored and name.endswith(COUNTER)):
            continue
        if name not in stored:
            raise InputError(f"{path} has no tensor {name!r}, which the network has; {_remedy(stored, own)}.")
        if stored[name] != shape:
            raise InputError(
                f"the tensor {name!r} of {path} has shape {quoted(stored[name])}, and that of the network {shape}; "
                f"give weights of the same architecture and image shape."
            )
    for name in stored:
        if name not in own:
            raise InputError(
                f"{path} has a tensor {quoted(name)}, which the network does not have; {_remedy(stored, own)}."
            )
    if fresh:
        logging.getLogger("apac").warning(
            "the last layer %s starts with random weights, because %s is for another number of classes.", head, path
        )
    return {name: names[name] for name in stored if name not in fresh}


def _other_classes(own: Mapping[str, Shape], stored: Mapping[str, Shape], head: str | None) -> set[str]:
    """Return the names of the tensors of the last layer if they differ in the number of classes only."""
    names = {name for name in (f"{head}.weight", f"{head}.bias") if name in own}
    same_inputs = all(name in stored and stored[name][1:] == own[name][1:] for name in names)
    differ = any(name in stored and stored[name] != own[name] for name in names)
    return names if same_inputs and differ else set()


def _remedy(stored: Mapping[str, Shape], own: Mapping[str, Shape]) -> str:
    common = len(stored.keys() & own.keys())
    return f"{common} of its {len(own)} tensors are there; give weights of the same architecture"


def _without_prefix(stored: Collection[str]) -> dict[str, str]:
    """Return the names of the network's tensors in the weights of a run, or in those that DataParallel has saved."""
    if any(name.startswith("network.") for name in stored) and all(name.startswith(OF_RUNS) for name in stored):
        stored = [name for name in stored if name.startswith("network.")]
    for prefix in ("network.", "module."):
        if all(name.startswith(prefix) for name in stored):
            return {name.removeprefix(prefix): name for name in stored}
    return {name: name for name in stored}
