"""Initial weights from a safetensors file."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor, nn

from apac.errors import InputError
from apac.validation import shortened

COUNTER = "num_batches_tracked"  # of batch normalization; old files lack it, and no computation uses it

OF_RUNS = ("network.", "normalization.")


def last_layer(network: nn.Module) -> str | None:
    """Return the name of the last linear layer, the classifier, or None if there is none."""
    names = [name for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    return names[-1] if names else None


def load_weights(network: nn.Module, path: Path) -> None:
    """Load the weights of a file into the network.

    The last linear layer keeps its own weights if the file has another number of classes, which is logged. Otherwise
    all tensors must fit; the error names the first that does not.
    """
    stored = _read(path)
    own = network.state_dict()
    head = last_layer(network)
    fresh = _other_classes(own, stored, head)
    for name in own:
        if name in fresh or (name not in stored and name.endswith(COUNTER)):
            stored[name] = own[name]
        elif name not in stored:
            raise InputError(f"{path} has no tensor {name!r}, which the network has; {_remedy(stored, own)}.")
        elif stored[name].shape != own[name].shape:
            raise InputError(
                f"the tensor {name!r} of {path} has shape {tuple(stored[name].shape)}, and that of the network "
                f"{tuple(own[name].shape)}; give weights of the same architecture and image shape."
            )
    for name in stored:
        if name not in own:
            raise InputError(f"{path} has a tensor {name!r}, which the network does not have; {_remedy(stored, own)}.")
    if fresh:
        logging.getLogger("apac").warning(
            "the last layer %s starts with random weights, because %s is for another number of classes.", head, path
        )
    network.load_state_dict(stored)


def _other_classes(own: Mapping[str, Tensor], stored: Mapping[str, Tensor], head: str | None) -> set[str]:
    """Return the names of the tensors of the last layer if they differ in the number of classes only."""
    names = {name for name in (f"{head}.weight", f"{head}.bias") if name in own}
    same_inputs = all(name in stored and stored[name].shape[1:] == own[name].shape[1:] for name in names)
    differ = any(name in stored and stored[name].shape != own[name].shape for name in names)
    return names if same_inputs and differ else set()


def _remedy(stored: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    common = len(stored.keys() & own.keys())
    return f"{common} of its {len(own)} tensors are there; give weights of the same architecture"


def _without_prefix(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of the network in the weights of a run, or in those that DataParallel has saved."""
    if any(name.startswith("network.") for name in stored) and all(name.startswith(OF_RUNS) for name in stored):
        stored = {name: tensor for name, tensor in stored.items() if name.startswith("network.")}
    for prefix in ("network.", "module."):
        if all(name.startswith(prefix) for name in stored):
            return {name.removeprefix(prefix): tensor for name, tensor in stored.items()}
    return stored


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise InputError(f"there is no weights file {path}; give a safetensors file.")
    try:
        return _without_prefix(load_file(path))
    except Exception as error:  # torch refuses some types and sizes in its own ways
        raise InputError(f"{path} cannot be read as a safetensors file: {shortened(error)}.") from error
