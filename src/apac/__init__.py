"""APAC, Augmented PAttern Classification: the decision rule that goes with training on deformed data."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from apac.classify.classifier import Classifier as Classifier
    from apac.classify.decision import Decision as Decision
    from apac.classify.stopping import FixedPasses as FixedPasses
    from apac.deform import presets as presets
    from apac.deform.base import Deformation as Deformation
    from apac.deform.color import Color as Color
    from apac.deform.compose import Compose as Compose
    from apac.deform.elastic import Elastic as Elastic
    from apac.deform.flip import Flip as Flip
    from apac.deform.homography import Homography as Homography
    from apac.deform.per_class import PerClass as PerClass
    from apac.deform.scale_shift import ScaleShift as ScaleShift
    from apac.deform.thickness import Thickness as Thickness
    from apac.errors import InputError as InputError
    from apac.run import Run as Run
    from apac.run import load as load
    from apac.run import train as train
    from apac.training.config import TrainConfig as TrainConfig

# Where each public name lives. It is imported when first used: `apac --help` does not wait for torch.
_HOMES = {
    "Classifier": "apac.classify.classifier",
    "Color": "apac.deform.color",
    "Compose": "apac.deform.compose",
    "Decision": "apac.classify.decision",
    "Deformation": "apac.deform.base",
    "Elastic": "apac.deform.elastic",
    "FixedPasses": "apac.classify.stopping",
    "Flip": "apac.deform.flip",
    "Homography": "apac.deform.homography",
    "InputError": "apac.errors",
    "PerClass": "apac.deform.per_class",
    "Run": "apac.run",
    "ScaleShift": "apac.deform.scale_shift",
    "Thickness": "apac.deform.thickness",
    "TrainConfig": "apac.training.config",
    "load": "apac.run",
    "presets": "apac.deform.presets",
    "train": "apac.run",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'apac' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    return home if home.__name__.endswith(f".{name}") else getattr(home, name)


def __dir__() -> list[str]:
    return sorted(__all__)
