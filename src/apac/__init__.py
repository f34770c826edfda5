"""APAC, Augmented PAttern Classification: the decision rule that goes with training on deformed data."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from apac.adapters.sklearn import ApacClassifier as ApacClassifier
    from apac.adapters.transforms.libraries import from_albumentations as from_albumentations
    from apac.adapters.transforms.libraries import from_callable as from_callable
    from apac.adapters.transforms.libraries import from_kornia as from_kornia
    from apac.adapters.transforms.libraries import from_torchvision as from_torchvision
    from apac.classify.choice import Choice as Choice
    from apac.classify.classifier import Classifier as Classifier
    from apac.classify.decision import Decision as Decision
    from apac.classify.rules.base import Rule as Rule
    from apac.classify.rules.certified import Certified as Certified
    from apac.classify.rules.exhaustive import Exhaustive as Exhaustive
    from apac.classify.rules.fixed import FixedPasses as FixedPasses
    from apac.classify.scores import Scores as Scores
    from apac.data.base import Dataset as Dataset
    from apac.deform import Amplitude as Amplitude
    from apac.deform import Color as Color
    from apac.deform import Compose as Compose
    from apac.deform import Deformation as Deformation
    from apac.deform import DeformationLayer as DeformationLayer
    from apac.deform import Elastic as Elastic
    from apac.deform import FeatureDropout as FeatureDropout
    from apac.deform import Flip as Flip
    from apac.deform import Homography as Homography
    from apac.deform import Jitter as Jitter
    from apac.deform import PerClass as PerClass
    from apac.deform import ScaleShift as ScaleShift
    from apac.deform import Shift as Shift
    from apac.deform import Thickness as Thickness
    from apac.deform import TimeShift as TimeShift
    from apac.deform import TimeWarp as TimeWarp
    from apac.deform import presets as presets
    from apac.errors import ApacError as ApacError
    from apac.errors import InputError as InputError
    from apac.errors import StorageError as StorageError
    from apac.errors import TrainingError as TrainingError
    from apac.evaluation.fixed import evaluate as evaluate
    from apac.evaluation.tuning import tune as tune
    from apac.inference.onnx_file import from_onnx as from_onnx
    from apac.runs.run import Run as Run
    from apac.runs.run import load as load
    from apac.runs.train import train as train
    from apac.training.config import TrainConfig as TrainConfig

# The module of each public name. It is imported on first use, so that `import apac` and `apac --help` are fast.
_HOMES = {
    "Amplitude": "apac.deform",
    "ApacClassifier": "apac.adapters.sklearn",
    "ApacError": "apac.errors",
    "Certified": "apac.classify.rules.certified",
    "Choice": "apac.classify.choice",
    "Classifier": "apac.classify.classifier",
    "Color": "apac.deform",
    "Compose": "apac.deform",
    "Dataset": "apac.data.base",
    "Decision": "apac.classify.decision",
    "Deformation": "apac.deform",
    "DeformationLayer": "apac.deform",
    "Elastic": "apac.deform",
    "Exhaustive": "apac.classify.rules.exhaustive",
    "FeatureDropout": "apac.deform",
    "FixedPasses": "apac.classify.rules.fixed",
    "Flip": "apac.deform",
    "Homography": "apac.deform",
    "InputError": "apac.errors",
    "Jitter": "apac.deform",
    "PerClass": "apac.deform",
    "Rule": "apac.classify.rules.base",
    "Run": "apac.runs.run",
    "ScaleShift": "apac.deform",
    "Scores": "apac.classify.scores",
    "Shift": "apac.deform",
    "StorageError": "apac.errors",
    "Thickness": "apac.deform",
    "TimeShift": "apac.deform",
    "TimeWarp": "apac.deform",
    "TrainConfig": "apac.training.config",
    "TrainingError": "apac.errors",
    "evaluate": "apac.evaluation.fixed",
    "from_albumentations": "apac.adapters.transforms.libraries",
    "from_callable": "apac.adapters.transforms.libraries",
    "from_kornia": "apac.adapters.transforms.libraries",
    "from_onnx": "apac.inference.onnx_file",
    "from_torchvision": "apac.adapters.transforms.libraries",
    "load": "apac.runs.run",
    "presets": "apac.deform",
    "train": "apac.runs.train",
    "tune": "apac.evaluation.tuning",
}

# Names that need an optional package; without it they are not listed, and using them says how to install it.
_OPTIONAL = {"ApacClassifier": "sklearn"}
__all__ = [name for name in _HOMES if name not in _OPTIONAL or find_spec(_OPTIONAL[name])]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("augmented-pattern-classification")
    if name not in _HOMES:
        raise AttributeError(f"module 'apac' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
