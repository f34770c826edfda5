"""The arguments of `train`, validated before any data are loaded, with the defaults filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from apac import models
from apac.data import NAMES
from apac.data.mapped import StoredImages, part_size
from apac.deform.base import Deformation
from apac.distributed.ranks.group import Group, agreed
from apac.errors import InputError
from apac.models.import_path import find_builder, is_import_path
from apac.models.timm_network import check_name, is_timm
from apac.runs import provenance
from apac.runs.folder import RunSettings
from apac.runs.presets import default_deformation
from apac.runs.training_data import data_name
from apac.training.config import TrainConfig
from apac.validation import quoted


def validate_settings(network: Any, data: Any, deformation: Any, config: TrainConfig) -> RunSettings:
    """Validate the arguments before any data are loaded, and fill in the defaults."""
    if not isinstance(config, TrainConfig):
        raise InputError(f"config must be a TrainConfig, got {type(config).__name__}.")
    network_name = _network_name(network)
    name = data_name(data)
    if config.tied and network_name not in models.TIED:
        raise InputError(f"tied={config.tied:g} is supported for {' and '.join(models.TIED)} only; omit it.")
    if deformation is None:
        deformation = default_deformation(network_name, name)
    if not isinstance(deformation, Deformation):
        raise InputError(f"the deformation must be a Deformation, got {deformation!r}.")
    if (config.size is not None or config.fit != "crop") and (name is None or name in NAMES):
        chosen = f"size={config.size}" if config.size is not None else f'fit="{config.fit}"'
        raise InputError(f"{chosen} is for the images of a folder; other data are used as they are, so omit it.")
    config = config.resolve(network_name, name)
    if config.normalization == "zca" and deformation.expects_pixels:
        raise InputError(
            f"{deformation} expects pixels in 0 … 1, and ZCA whitening comes before the deformation; use "
            f'normalization="standardization", which comes after it.'
        )
    return RunSettings(network_name, name, deformation, config)


def _network_name(network: Any) -> str | None:
    if isinstance(network, nn.Module):
        if not any(parameter.requires_grad for parameter in network.parameters()):
            raise InputError(f"the network, a {type(network).__name__}, has no parameters to train.")
        return None
    if isinstance(network, str) and is_timm(network):
        check_name(network)
        return network
    if isinstance(network, str) and is_import_path(network):
        find_builder(network, import_it=True)
        return network
    if not isinstance(network, str) or network not in models.NAMES:
        raise InputError(
            f"there is no network {quoted(network)}; choose one of {', '.join(models.NAMES)}, timm:NAME, a module, or "
            f"package.module:function."
        )
    return str(network)


def check_values(images: Tensor | StoredImages, settings: RunSettings, config: TrainConfig) -> None:
    """Raise InputError if the images do not have the values that the settings require."""
    if not images.is_floating_point():
        return
    if config.normalization is not None:
        raise InputError(
            f"floating-point images are not normalized, so omit normalization={config.normalization!r}, or pass uint8 "
            f"pixels."
        )
    for part in images.split(part_size(images.shape[1:], 500)) if settings.deformation.expects_pixels else ():
        settings.deformation.validate_pixels(part)


def check_ranks(group: Group, settings: RunSettings, options: Mapping[str, Any]) -> None:
    """Raise InputError on all ranks if they were not started alike, or are too many for a batch."""
    if group.size == 1:
        return
    versions = {"the version of torch": torch.__version__, "the version of apac": provenance.code_version()}
    described = settings.to_json()
    config = described.pop("config")
    group.require_same({**versions, **described, **config, **options})
    if settings.config.batch_size < group.size:
        raise agreed(
            InputError(
                f"batch_size={settings.config.batch_size} leaves none of its virtual samples for some of {group.size} "
                f"ranks; start fewer of them, or use a larger batch_size."
            )
        )
