"""Conversion of a TrainingState to named tensors and metadata, and back. `apac.runs` reads and writes the files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from apac.errors import InputError
from apac.training.config import TrainConfig
from apac.training.loop import EpochRecord, TrainingState, untie
from apac.validation import parse_json

OTHER_TRAINING = "the checkpoint belongs to another training; start again with overwrite=True."
STEPS = "step"
OPTIMIZER_TENSORS = ("momentum_buffer", "exp_avg", "exp_avg_sq", STEPS)  # of SGD and Muon, and the others of AdamW


def to_tensors(state: TrainingState, config: TrainConfig) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a state, and its other values as metadata."""
    tensors = {f"network.{name}": tensor for name, tensor in state.network.state_dict().items()}
    if state.averaged is not None:
        tensors |= {f"averaged.{name}": tensor for name, tensor in state.averaged.state_dict().items()}
    for name, parameter in state.network.named_parameters():
        for kind, value in state.optimizer.state.get(parameter, {}).items():
            if value is not None:  # the buffer of SGD without momentum
                tensors[f"{kind}.{name}"] = value
    progress = {
        "config": config.to_json(),
        "tied": state.tied,
        "step": state.step,
        "loss_sum": state.loss_sum,
        "seconds": state.seconds,
        "history": [epoch.to_json() for epoch in state.history],
    }
    return tensors, {"state": json.dumps(progress)}


def check_shapes(network: nn.Module, config: TrainConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise InputError if tensors of these shapes are not those of a checkpoint, before they are read.

    That of a tied network may have its own weights or, later, those of the MLP.
    """
    own = {f"network.{name}": tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    stored = {name: shape for name, shape in shapes.items() if name.startswith("network.")}
    others = {name: shape for name, shape in shapes.items() if name not in stored}
    for name, shape in others.items():
        kind, _, parameter = name.partition(".")
        known = kind in OPTIMIZER_TENSORS or kind == "averaged"
        if not known or shape not in ((), stored.get(f"network.{parameter.removeprefix('module.')}")):
            raise InputError(OTHER_TRAINING)
    if not config.tied and stored != own:
        raise InputError(OTHER_TRAINING)


def restore(
    state: TrainingState,
    config: TrainConfig,
    shape: Sequence[int],
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
) -> None:
    """Restore the stored values into an initial state, for images of shape (C, H, W)."""
    try:
        progress = parse_json(metadata["state"])
        if TrainConfig.from_json(progress["config"]) != config:
            raise ValueError("another configuration")
        if state.tied and not progress["tied"]:
            untie(state, config, shape)
        _load(state.network, "network.", tensors)
        if state.averaged is not None:
            _load(state.averaged, "averaged.", tensors)
        for name, parameter in state.network.named_parameters():
            for kind in OPTIMIZER_TENSORS:
                stored = tensors.get(f"{kind}.{name}")
                if stored is not None:
                    # a buffer in the memory format of the parameter, as torch's own would be
                    own = parameter.detach().clone().copy_(stored) if kind != STEPS else stored.to(parameter.device)
                    state.optimizer.state[parameter][kind] = own
        state.step, state.loss_sum = int(progress["step"]), float(progress["loss_sum"])
        state.seconds = float(progress["seconds"])
        state.history = [EpochRecord.from_json(epoch) for epoch in progress["history"]]
        if state.step < 0 or len(state.history) > config.epochs:
            raise ValueError("the progress is damaged")
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(OTHER_TRAINING) from error


def _load(network: nn.Module, prefix: str, tensors: Mapping[str, Tensor]) -> None:
    network.load_state_dict({name: tensors[prefix + name] for name in network.state_dict()})
