"""TrainConfig: the settings of the optimization, in one frozen dataclass."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from apac.errors import InputError
from apac.validation import validate_integer, validate_number, validate_positive

# (learning_rate, weight_decay) of the paper's training details
PAPER = {
    "mnist-cnn": (2**-4, 5e-7),
    "mnist-mlp": (2**-5, 5e-6),
    "cifar10-cnn": (2**-8, 5e-7),
    "cifar10-mlp": (2**-8, 5e-7),
}
PAPER_DATA = ("mnist-5k", "mnist", "cifar10")
OTHERS = (0.005, 5e-4)  # suits small data sets


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training.

    A `learning_rate` or `weight_decay` of None becomes the paper's value for the paper's networks and data sets, and
    0.005 and 5e-4 for everything else. A run stores the values in force.

    >>> TrainConfig(epochs=30, schedule="cosine").batch_size
    100
    """

    epochs: int = 100  # the paper: 15,000
    batch_size: int = 100
    learning_rate: float | None = None  # the initial one
    schedule: Literal["exponential", "cosine"] = "exponential"  # times 0.9993 per epoch, or half a cosine down to 0
    warmup: float = 0.0  # the fraction of all steps in which the learning rate grows from 0, before the schedule
    optimizer: Literal["sgd", "muon"] = "sgd"
    tied: float = 0.0  # the first fraction of the epochs, in which an MLP shares weights as a convolution does
    momentum: float = 0.9
    weight_decay: float | None = None  # λ: each step adds λ·w to the gradient of the weights, not of the biases
    ema_decay: float = 0.0  # per step, of the exponential moving average of the weights; 0 keeps the last weights
    validation_fraction: float = 0.1  # the fraction of the training images that is held out
    seed: int = 0
    on_unreadable: Literal["refuse", "skip"] = field(default="refuse", compare=False)  # image files of a folder

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            validate_integer(self, name, minimum=1)
        validate_integer(self, "seed")
        if self.learning_rate is not None:
            validate_positive(self, "learning_rate")
        if self.weight_decay is not None:
            validate_number(self, "weight_decay", minimum=0)
        for name in ("warmup", "tied", "momentum", "ema_decay", "validation_fraction"):
            validate_number(self, name, minimum=0, below=1)
        for name, choices in (
            ("schedule", ("exponential", "cosine")),
            ("optimizer", ("sgd", "muon")),
            ("on_unreadable", ("refuse", "skip")),
        ):
            if getattr(self, name) not in choices:
                first, second = choices
                raise InputError(f'{name} must be "{first}" or "{second}", got {getattr(self, name)!r}.')

    def resolve(self, network: str | None, data: str | None) -> TrainConfig:
        """Replace None by the values for this network and these data, by name; None stands for one without a name."""
        learning_rate, weight_decay = PAPER.get(network or "", OTHERS) if data in PAPER_DATA else OTHERS
        return replace(
            self,
            learning_rate=learning_rate if self.learning_rate is None else self.learning_rate,
            weight_decay=weight_decay if self.weight_decay is None else self.weight_decay,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(payload: dict[str, Any]) -> TrainConfig:
        return TrainConfig(**payload)
