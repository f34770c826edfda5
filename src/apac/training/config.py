"""TrainConfig: the training settings as a frozen dataclass."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from apac import limits
from apac.errors import InputError
from apac.validation import quoted, validate_integer, validate_number, validate_positive

# (learning_rate, weight_decay) of the paper's training details
PAPER = {
    "mnist-cnn": (2**-4, 5e-7),
    "mnist-mlp": (2**-5, 5e-6),
    "cifar10-cnn": (2**-8, 5e-7),
    "cifar10-mlp": (2**-8, 5e-7),
}
PAPER_DATA = ("mnist-5k", "mnist", "cifar10")
OTHERS = (0.005, 5e-4)  # suitable for small data sets
MUON = {"resnet": (0.05, 0.01), "cifar10-modern": (0.06, 0.06)}  # networks that Muon trains by default
MUON_OTHERS = (0.02, 0.05)  # of the other networks, if they are trained by Muon
ADAMW = (1e-3, 0.05)  # of any network
TIMM = "timm:"  # how the names of networks of that library start

Optimizer = Literal["sgd", "muon", "adamw"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class TrainConfig:
    """Training settings.

    Values that are None depend on the network and the data. The networks "resnet" and "cifar10-modern" are trained by
    Muon and those of timm by AdamW, with warm-up and a cosine schedule; others by SGD with an exponential schedule.
    `learning_rate` and `weight_decay` are the paper's for its networks and data sets; otherwise they are 0.05 and 0.01
    for "resnet", 0.06 and 0.06 for "cifar10-modern" (for batches of 500 images), 0.02 and 0.05 for other networks that
    are trained by Muon, 0.001 and 0.05 for AdamW, and 0.005 and 5e-4 for all others. If `normalization` is None, MNIST
    is scaled, CIFAR-10 is whitened for the paper's networks, and other pixels are standardized. A run stores the values
    that were used.

    >>> TrainConfig(epochs=30, schedule="cosine").batch_size
    100
    """

    epochs: int = 100  # the paper: 15,000
    batch_size: int = 100
    learning_rate: float | None = None  # initial value
    schedule: Literal["exponential", "cosine"] | None = None  # factor 0.9993 per epoch, or half a cosine to 0
    warmup: float | None = None  # fraction of all steps with a linear increase of the learning rate from 0
    optimizer: Optimizer | None = None
    tied: float = 0.0  # initial fraction of the epochs in which an MLP shares weights like a convolution
    momentum: float = 0.9
    weight_decay: float | None = None  # L2 penalty on the weights, not the biases; for Muon and AdamW decoupled
    label_smoothing: float = 0.0  # share of the target probability that is spread over all classes
    ema_decay: float = 0.0  # of the moving average of the weights, per step; 0 disables averaging
    validation_fraction: float = 0.1  # fraction of the training images to hold out
    seed: int = 0
    # of uint8 pixels: to 0 … 1; also standardized per channel after the deformation; or ZCA-whitened before it
    normalization: Literal["scaling", "standardization", "zca"] | None = None
    size: int | None = None  # height and width of the images of a folder in pixels; None chooses it from the files
    fit: Literal["crop", "pad"] = "crop"  # how the pictures of a folder become square
    weights: str | None = None  # a safetensors file with the initial weights; the last layer may have other classes
    freeze: bool = False  # train the last layer only
    precision: Precision = "float32"  # of matrix products and convolutions; the weights keep their type
    replacement: bool = True  # draw images with replacement, as in the paper, or none again before all others are drawn
    on_unreadable: Literal["refuse", "skip"] = field(default="refuse", compare=False)  # image files of a folder

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            validate_integer(self, name, minimum=1)
        validate_integer(self, "seed")
        if self.learning_rate is not None:
            validate_positive(self, "learning_rate")
        if self.weight_decay is not None:
            validate_number(self, "weight_decay", minimum=0)
        for name in ("tied", "momentum", "label_smoothing", "ema_decay", "validation_fraction"):
            validate_number(self, name, minimum=0, below=1)
        if self.warmup is not None:
            validate_number(self, "warmup", minimum=0, below=1)
        for name in ("freeze", "replacement"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} must be True or False, got {quoted(getattr(self, name))}.")
        if self.size is not None:
            validate_integer(self, "size", minimum=1, maximum=limits.IMAGE_SIDE)
        if self.weights is not None:
            object.__setattr__(self, "weights", os.path.abspath(os.path.expanduser(self.weights)))
        for name, choices in (
            ("schedule", (None, "exponential", "cosine")),
            ("optimizer", (None, "sgd", "muon", "adamw")),
            ("normalization", (None, "scaling", "standardization", "zca")),
            ("fit", ("crop", "pad")),
            ("precision", ("float32", "bfloat16")),
            ("on_unreadable", ("refuse", "skip")),
        ):
            if getattr(self, name) not in choices:
                *others, last = (f'"{choice}"' for choice in choices if choice is not None)
                raise InputError(f"{name} must be {', '.join(others)} or {last}, got {quoted(getattr(self, name))}.")

    def resolve(self, network: str | None, data: str | None) -> TrainConfig:
        """Replace None by the default for this network and data set. Pass None for a network or data without a name."""
        timm = (network or "").startswith(TIMM)
        modern = network in MUON or timm
        optimizer: Optimizer = self.optimizer or ("muon" if network in MUON else "adamw" if timm else "sgd")
        learning_rate, weight_decay = _rate_and_decay(network, data, optimizer)
        return replace(
            self,
            optimizer=optimizer,
            schedule=self.schedule or ("cosine" if modern else "exponential"),
            warmup=(0.1 if modern else 0.0) if self.warmup is None else self.warmup,
            normalization=_normalization(network, data) if self.normalization is None else self.normalization,
            learning_rate=learning_rate if self.learning_rate is None else self.learning_rate,
            weight_decay=weight_decay if self.weight_decay is None else self.weight_decay,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(payload: dict[str, Any]) -> TrainConfig:
        return TrainConfig(**payload)


def _rate_and_decay(network: str | None, data: str | None, optimizer: Optimizer) -> tuple[float, float]:
    if optimizer == "adamw":
        return ADAMW
    if network in MUON:
        return MUON[network]
    if optimizer == "muon":
        return MUON_OTHERS
    return PAPER.get(network or "", OTHERS) if data in PAPER_DATA else OTHERS


def _normalization(network: str | None, data: str | None) -> Literal["scaling", "standardization", "zca"] | None:
    if data is None:
        return None  # it depends on the type of the images
    if data in ("mnist-5k", "mnist"):
        return "scaling"
    return "zca" if data == "cifar10" and network in PAPER else "standardization"
