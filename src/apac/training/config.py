"""What a training is: everything that decides its outcome, in one frozen dataclass."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from apac import data, models
from apac.data.folder import OnUnreadable
from apac.deform import presets
from apac.deform.base import Deformation
from apac.deform.per_class import PerClass
from apac.errors import InputError
from apac.validation import validate_integer, validate_number, validate_positive

FAMILY = {"mnist-5k": "mnist", "mnist": "mnist", "cifar10": "cifar10"}
PRESET = {"mnist": presets.mnist, "cifar10": presets.cifar10}

FOLDER = (0.005, 5e-4)  # rate and L2 factor for the few images that people have

# (initial rate, L2 factor) of the paper's training details
PAPER = {
    "mnist-cnn": (2**-4, 5e-7),
    "mnist-mlp": (2**-5, 5e-6),
    "cifar10-cnn": (2**-8, 5e-7),
    "cifar10-mlp": (2**-8, 5e-7),
}


@dataclass(frozen=True)
class TrainConfig:
    """One training. What is None becomes the paper's value for the data and the network, or one that suits a folder, so
    that a configuration always prints, compares and is stored with the values in force."""

    data: str = "mnist-5k"  # or a folder with a sub-folder of images for each class
    model: str = "cnn"  # "cnn" or "mlp": the paper's network of that kind for the data
    deformation: Deformation | None = None  # Compose() trains on the original data
    epochs: int = 100  # the paper: 15,000
    batch: int = 100
    rate: float | None = None
    schedule: Literal["paper", "cosine"] = "paper"  # times 0.9993 an epoch, or half a cosine down to 0 over all epochs
    warmup: float = 0.0  # the part of all steps in which the rate grows from 0, before the schedule begins
    optimizer: Literal["sgd", "muon"] = "sgd"
    tied: float = 0.0  # the part of all epochs, the first, in which an MLP's weights are tied as a convolution's are
    momentum: float = 0.9
    l2: float | None = None  # λ: each step adds λ·w to the gradient of the weights, not of the biases
    average: float = 0.0  # decay a step of the running mean of the weights (EMA) that is kept; 0 keeps the last weights
    validation: float = 0.1  # the part of the training images that is held out
    seed: int = 0
    corrupt: OnUnreadable = field(
        default="refuse", compare=False
    )  # what to do with files of a folder that cannot be read; or "skip"

    def __post_init__(self) -> None:
        if not isinstance(self.data, str | os.PathLike):
            raise InputError(f"there is no data set {self.data!r}; choose one of {', '.join(data.NAMES)}, or a folder.")
        object.__setattr__(self, "data", os.fspath(self.data))
        if self.data not in FAMILY and not os.path.isabs(self.data) and ":" not in self.data:
            object.__setattr__(self, "data", _folder(self.data))
        if self.network not in models.BUILDERS:
            raise InputError(f"there is no model {self.model!r}; choose cnn or mlp.")
        rate, l2 = PAPER[self.network] if self.folder is None else FOLDER
        given = {"deformation": PRESET[self.family](), "rate": rate, "l2": l2}
        for name, value in given.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if not isinstance(self.deformation, Deformation):
            raise InputError(f"the deformation must be a Deformation, got {self.deformation!r}.")
        if self.folder is None:
            self.check_classes(10)
        if self.corrupt not in ("refuse", "skip"):
            raise InputError(f'corrupt is "refuse" or "skip", got {self.corrupt!r}.')
        self._validate_numbers()

    def _validate_numbers(self) -> None:
        for name in ("epochs", "batch"):
            validate_integer(self, name, minimum=1)
        validate_integer(self, "seed")
        validate_positive(self, "rate")
        validate_number(self, "l2", minimum=0)
        for name in ("warmup", "tied", "momentum", "average", "validation"):
            validate_number(self, name, minimum=0, below=1)
        if self.tied and self.network not in models.TIED:
            raise InputError(f"only the weights of an mlp can be tied at first, not those of a {self.model}.")
        if self.schedule not in ("paper", "cosine"):
            raise InputError(f'the schedule is "paper" or "cosine", got {self.schedule!r}.')
        if self.optimizer not in ("sgd", "muon"):
            raise InputError(f'the optimizer is "sgd" or "muon", got {self.optimizer!r}.')

    @property
    def folder(self) -> Path | None:
        """Where the images are, if they are a person's own."""
        return None if self.data in FAMILY else Path(self.data)

    @property
    def family(self) -> str:
        """The paper's data set whose networks and deformation are used: CIFAR-10's for pictures of one's own."""
        return FAMILY.get(self.data, "cifar10")

    @property
    def network(self) -> str:
        """The name of the network among the paper's four."""
        return f"{self.family}-{self.model}"

    def check_classes(self, classes: int) -> None:
        """Refuse a class-distinctive deformation for another number of classes."""
        if isinstance(self.deformation, PerClass) and self.deformation.classes != classes:
            raise InputError(
                f"{self.data} has {classes} classes, but the PerClass was made for {self.deformation.classes}."
            )

    @property
    def whitened(self) -> bool:
        """CIFAR-10 is ZCA-whitened, MNIST is not (paper, section 4.2)."""
        return self.data == "cifar10"

    def to_json(self) -> dict[str, Any]:
        form = {f.name: getattr(self, f.name) for f in fields(self)}
        assert self.deformation is not None
        return form | {"deformation": self.deformation.to_json()}

    @staticmethod
    def from_json(form: dict[str, Any]) -> TrainConfig:
        return TrainConfig(**form | {"deformation": Deformation.from_json(form["deformation"])})


def _folder(name: str) -> str:
    """A folder by its whole path. A stored path need not exist any more, nor be of this kind of machine."""
    path = Path(os.path.abspath(os.path.expanduser(name)))
    if not name or (os.sep not in name and not path.is_dir()):
        raise InputError(f"there is no data set {name!r}; choose one of {', '.join(data.NAMES)}, or a folder.")
    return str(path)
