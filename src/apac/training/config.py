"""TrainConfig: the training settings as a frozen dataclass."""

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
OTHERS = (0.005, 5e-4)  # suitable for small data sets


@dataclass(frozen=True)
class TrainConfig:
    """Training settings.

    If `learning_rate` or `weight_decay` is None, the paper's value is used for the paper's networks and data sets, and
    0.005 or 5e-4 otherwise. If `normalization` is None, MNIST is scaled, CIFAR-10 is whitened for the paper's networks,
    and other pixels are standardized. A run stores the values that were used.

    >>> TrainConfig(epochs=30, schedule="cosine").batch_size
    100
    """

    epochs: int = 100  # the paper: 15,000
    batch_size: int = 100
    learning_rate: float | None = None  # initial value
    schedule: Literal["exponential", "cosine"] = "exponential"  # factor 0.9993 per epoch, or half a cosine to 0
    warmup: float = 0.0  # fraction of all steps with a linear increase of the learning rate from 0
    optimizer: Literal["sgd", "muon"] = "sgd"
    tied: float = 0.0  # initial fraction of the epochs in which an MLP shares weights like a convolution
    momentum: float = 0.9
    weight_decay: float | None = None  # L2 penalty on the weights, not on the biases
    ema_decay: float = 0.0  # of the moving average of the weights, per step; 0 disables averaging
    validation_fraction: float = 0.1  # fraction of the training images to hold out
    seed: int = 0
    # of uint8 pixels: to 0 … 1; also standardized per channel after the deformation; or ZCA-whitened before it
    normalization: Literal["scaling", "standardization", "zca"] | None = None
    size: int | None = None  # height and width of the images of a folder in pixels; None chooses it from the files
    fit: Literal["crop", "pad"] = "crop"  # how the pictures of a folder become square
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
        if self.size is not None:
            validate_integer(self, "size", minimum=1)
        for name, choices in (
            ("schedule", ("exponential", "cosine")),
            ("optimizer", ("sgd", "muon")),
            ("normalization", (None, "scaling", "standardization", "zca")),
            ("fit", ("crop", "pad")),
            ("on_unreadable", ("refuse", "skip")),
        ):
            if getattr(self, name) not in choices:
                *others, last = (f'"{choice}"' for choice in choices if choice is not None)
                raise InputError(f"{name} must be {', '.join(others)} or {last}, got {getattr(self, name)!r}.")

    def resolve(self, network: str | None, data: str | None) -> TrainConfig:
        """Replace None by the default for this network and data set. Pass None for a network or data without a name."""
        learning_rate, weight_decay = PAPER.get(network or "", OTHERS) if data in PAPER_DATA else OTHERS
        return replace(
            self,
            normalization=_normalization(network, data) if self.normalization is None else self.normalization,
            learning_rate=learning_rate if self.learning_rate is None else self.learning_rate,
            weight_decay=weight_decay if self.weight_decay is None else self.weight_decay,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(payload: dict[str, Any]) -> TrainConfig:
        return TrainConfig(**payload)


def _normalization(network: str | None, data: str | None) -> Literal["scaling", "standardization", "zca"] | None:
    if data is None:
        return None  # it depends on the type of the images
    if data in ("mnist-5k", "mnist"):
        return "scaling"
    return "zca" if data == "cifar10" and network in PAPER else "standardization"
