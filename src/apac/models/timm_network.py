"""Networks of the library timm, by name: "timm:resnet18"."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import torch
from torch import nn

from apac import limits
from apac.errors import InputError, require
from apac.models.import_path import failure
from apac.randomness import generator, seeding
from apac.validation import quoted

PREFIX = "timm:"


def is_timm(name: str) -> bool:
    return name.startswith(PREFIX)


def check_name(name: str) -> None:
    """Raise InputError if timm is not installed or has no network of that name."""
    timm, own = _timm(), name.removeprefix(PREFIX)
    if not timm.is_model(own):
        # Comparing takes time by the length of the name, which is at most 60 characters in timm.
        close = get_close_matches(own, timm.list_models(), n=3) if len(own) <= limits.QUOTED else []
        hint = f"the closest are {', '.join(close)}" if close else "timm.list_models() lists its networks"
        raise InputError(f"timm has no network {quoted(own)}; {hint}.")


def build_timm(name: str, image_shape: tuple[int, int, int], classes: int, *, seed: int) -> nn.Module:
    """Build the network with random weights, and with the global generators seeded. Nothing is downloaded."""
    check_name(name)
    channels, *sides = image_shape
    options = {"pretrained": False, "num_classes": classes, "in_chans": channels}
    with seeding() as seed_all:
        seed_all(generator(seed, "initial weights", 0).initial_seed())
        try:
            network = _create(name.removeprefix(PREFIX), options, tuple(sides))
        except Exception as error:  # of many kinds, for example for an image size that a transformer cannot divide
            raise failure(name, error) from error
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def standardization_constants(network: nn.Module) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return the mean and standard deviation of pixels in 0 … 1 for which timm's weights were made, if it says so."""
    published = getattr(network, "pretrained_cfg", None) or {}
    mean, deviation = published.get("mean"), published.get("std")
    return (tuple(mean), tuple(deviation)) if mean and deviation else None


def _create(name: str, options: dict[str, Any], size: tuple[int, ...]) -> nn.Module:
    create: Any = _timm().create_model
    try:
        return create(name, img_size=size, **options)  # type: ignore[no-any-return]
    except TypeError as error:
        if "img_size" not in str(error):
            raise
        return create(name, **options)  # type: ignore[no-any-return]  # a convolutional network takes any size


def _timm() -> Any:
    try:
        return require("timm", extra="timm")
    except RuntimeError as error:  # torchvision, which timm imports, does not fit the installed torch
        reason = str(error).rstrip(".")
        raise InputError(
            f"timm cannot be imported: {reason}; install the version of torchvision for this torch."
        ) from error
