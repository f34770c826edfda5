"""Check that the files of a run fit together, before anything is built by the numbers in them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from apac import models
from apac.data.normalize import check_tensor_names, normalization_shapes
from apac.errors import InputError, StorageError
from apac.models.import_path import find_builder, is_import_path
from apac.models.timm_network import build_timm, is_timm
from apac.runs.folder import REMEDY, mismatch
from apac.runs.storage import Shapes
from apac.validation import quoted

NETWORK, NORMALIZATION = "network.", "normalization."  # how the names of stored tensors start

LARGEST = torch.finfo(torch.float32).max  # in which networks compute


def check_shapes(
    folder: Path,
    network: nn.Module | str,
    normalization: str,
    image_shape: tuple[int, int, int],
    classes: int,
    shapes: Shapes,
) -> None:
    """Raise an error if tensors of these shapes are not those of the network: a module, or the name in a run.

    The network of a function of the user's is not known here. Loading the weights into it compares them.
    """
    expected = _expected(network, image_shape, classes)
    stored = {key.removeprefix(NETWORK): shape for key, shape in shapes.items() if key.startswith(NETWORK)}
    if expected is not None and stored != expected:
        raise mismatch(folder) if isinstance(network, str) else other_architecture(network, folder)
    if not all(key.startswith((NETWORK, NORMALIZATION)) for key in shapes):
        raise mismatch(folder)
    own = {key.removeprefix(NORMALIZATION): shape for key, shape in shapes.items() if key.startswith(NORMALIZATION)}
    wanted = normalization_shapes(normalization, image_shape)
    check_tensor_names(normalization, own)
    if own != wanted:
        raise InputError(
            f"the normalization {normalization!r} of images of shape {image_shape} needs tensors of the shapes "
            f"{wanted}, got {quoted(own)}; the run is damaged; train it again."
        )


def other_architecture(network: nn.Module, folder: Path) -> InputError:
    """Return the error for a module that the caller passed and that has other weights."""
    return InputError(
        f"network=, a {type(network).__name__}, does not fit the weights in {folder}; pass a module of the "
        f"architecture that was trained."
    )


def validate_name(name: str | None) -> str:
    """Return the name of a network that a run stores; raise InputError if it cannot be rebuilt by it."""
    if name is None:
        raise InputError("this run was trained from a module; pass a module of the same architecture as network=.")
    if is_import_path(name):
        find_builder(name, import_it=False)
    return name


def check_finite(tensors: Mapping[str, Tensor], path: Path, remedy: str = REMEDY) -> None:
    """Raise StorageError if a stored number is NaN or infinite: no image could be decided."""
    for name, tensor in tensors.items():
        if tensor.is_complex():
            raise StorageError(f"the weights in {path} have complex numbers, in {quoted(name)}; {remedy}.")
        if tensor.is_floating_point() and not _extreme(tensor) <= LARGEST:
            raise StorageError(f"the weights in {path} have NaN or infinite values, in {quoted(name)}; {remedy}.")


def _extreme(tensor: Tensor) -> float:
    """Return the largest absolute value; NaN and infinity propagate. No copy of the tensor is made."""
    if not tensor.numel():
        return 0.0
    wide = tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()
    low, high = torch.aminmax(wide)
    return max(abs(float(low)), abs(float(high))) if not (low.isnan() or high.isnan()) else math.nan


def _expected(network: nn.Module | str, image_shape: tuple[int, int, int], classes: int) -> Shapes | None:
    """Return the shapes of the weights of a network, None if they are not known before it is built or used."""
    if not isinstance(network, str):
        module: nn.Module | None = network
    elif is_timm(network):
        module = _without_memory(network, image_shape, classes)
    else:
        module = None if is_import_path(network) else models.without_memory(network, image_shape, classes)
    if module is None or any(is_lazy(parameter) for parameter in (*module.parameters(), *module.buffers())):
        return None
    state = module.state_dict()
    if not all(isinstance(value, Tensor) for value in state.values()):  # which no file of tensors has
        return None
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def _without_memory(name: str, image_shape: tuple[int, int, int], classes: int) -> nn.Module | None:
    """Build a network of timm on the meta device; None for the few that compute with numbers while they are built."""
    try:
        with torch.device("meta"):
            return build_timm(name, image_shape, classes, seed=0)
    except InputError as error:
        if error.__cause__ is None or "meta" not in str(error).lower():
            raise
        return None
