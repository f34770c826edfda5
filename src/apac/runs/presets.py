"""The preset deformations by name, and which of them is the default."""

from __future__ import annotations

from collections.abc import Callable

from apac.data import NAMES
from apac.deform import presets
from apac.deform.base import Deformation
from apac.deform.compose import Compose
from apac.errors import InputError

PRESETS: dict[str, Callable[[], Deformation]] = {
    "mnist": presets.mnist,
    "cifar10": presets.cifar10,
    "photos": presets.photos,  # the default of the images of a folder
}


def default_deformation(network: str | None, data: str | None) -> Deformation:
    """Return the default for a network and a data set, either of which may have no name."""
    if data is not None and data not in NAMES:
        return presets.photos()
    for name in (data, network):
        preset = PRESETS.get((name or "").partition("-")[0])
        if preset is not None:
            return preset()
    raise InputError("there is no default deformation for this network and data; pass one, or Compose() for none.")


def describe(deformation: Deformation) -> str:
    """Return the preset, if it is one, and the constructor calls of the parts.

    >>> import apac
    >>> describe(apac.Compose(apac.Jitter(0.1), apac.Flip()))
    'Jitter(std=0.1), Flip(probability=0.5)'
    """
    if deformation == Compose():
        return "none"
    parts = deformation.parts if isinstance(deformation, Compose) else (deformation,)
    name = next((f"{name}: " for name, preset in PRESETS.items() if preset() == deformation), "")
    return name + ", ".join(map(repr, parts))
