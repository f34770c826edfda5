"""Initial weights from a safetensors file."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from apac.errors import InputError
from apac.models.weights import match_weights
from apac.runs.storage import Shapes, read_tensors
from apac.runs.stored_network import check_finite

REMEDY = "give a safetensors file with the weights of a trained network"


def load_weights(network: nn.Module, path: Path) -> None:
    """Load the weights of a file into the network; `match_weights` says which. They are read after they fit."""
    if not path.is_file():
        raise InputError(f"there is no weights file {path}; {REMEDY}.")
    names: dict[str, str] = {}

    def check(shapes: Shapes) -> None:
        names.update(match_weights(network, shapes, path))

    tensors, _ = read_tensors(path, REMEDY, check)
    weights = {name: tensors[stored] for name, stored in names.items()}
    check_finite(weights, path, REMEDY)
    network.load_state_dict(network.state_dict() | weights)
