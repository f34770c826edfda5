"""A recipe: a training with deformation, its baseline, and the rules to evaluate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from apac.classify.rules.base import PASSES_PER_UPDATE
from apac.classify.rules.certified import Certified
from apac.deform.base import Deformation
from apac.deform.compose import Compose
from apac.training.budget import epochs_within
from apac.training.config import Precision, TrainConfig

ORIGINAL = Compose()  # no deformation
SHOWCASE_PASSES = (1, 4, 16)  # less than a minute on two cores for cifar10-cnn


@dataclass(frozen=True)
class Errors:
    """The paper's test errors after one training, in percent."""

    plain: float
    apac: float | None = None  # with M = 16,384


PAPER_TABLE = {
    "mnist-cnn": {"deformed": Errors(0.39, 0.23), "original": Errors(0.69)},
    "mnist-mlp": {"deformed": Errors(0.29, 0.26), "original": Errors(1.49)},
    "cifar10-cnn": {"deformed": Errors(20.05, 10.33), "original": Errors(22.63)},
    "cifar10-mlp": {"deformed": Errors(23.20, 14.07), "original": Errors(55.96)},
}

# Names of the two training runs of a recipe in tables and progress
LABELS = {
    "deformed": "deformed data",
    "original": "original data",
    "distinctive": "class-distinctive deformation",
    "indistinctive": "class-indistinctive deformation",
}

CERTIFIED = tuple(Certified(error) for error in (0.1, 0.01, 0.001, 0.0001))


class Training(NamedTuple):
    """One of the two training runs of a recipe."""

    deformation: Deformation
    config: TrainConfig  # with all values resolved


@dataclass(frozen=True)
class Recipe:
    """A training, a baseline that differs in its deformation and epochs, and the rules to evaluate."""

    name: str
    network: str
    data: str
    deformation: Deformation
    config: TrainConfig
    passes: tuple[int, ...]  # the M to evaluate
    certified: tuple[Certified, ...] = CERTIFIED
    baseline: Deformation = ORIGINAL
    baseline_epochs: float = 1.0  # as a fraction of the epochs of the training
    showcase: str | None = None  # a shipped network that the report opens with

    @property
    def trainings(self) -> dict[str, Training]:
        """The training and its baseline, by name."""
        config = self.config.resolve(self.network, self.data)
        epochs = max(1, round(self.baseline_epochs * config.epochs))
        training = Training(self.deformation, config)
        baseline = Training(self.baseline, replace(config, epochs=epochs))
        if self.baseline == ORIGINAL:
            return {"deformed": training, "original": baseline}
        return {"distinctive": training, "indistinctive": baseline}

    @property
    def paper(self) -> dict[str, Errors]:
        """The paper's errors by training. There are none for class-distinctive deformation."""
        row = PAPER_TABLE[self.network]
        return row if self.baseline == ORIGINAL else {"indistinctive": row["deformed"]}

    def with_epochs(self, epochs: int) -> Recipe:
        """Return the recipe with this number of epochs; the baseline keeps its fraction of them."""
        return replace(self, config=replace(self.config, epochs=epochs))

    def with_precision(self, precision: Precision) -> Recipe:
        """Return the recipe with this precision in both trainings."""
        return replace(self, config=replace(self.config, precision=precision))

    def with_passes(self, passes: tuple[int, ...]) -> Recipe:
        """Return the recipe with other numbers of passes M. Nothing takes more passes than the largest M.

        If that is less than the certified rules need to decide anything, or than the showcase takes, they are left out.
        """
        limit = max(passes)
        rules = self.certified if limit >= PASSES_PER_UPDATE else ()
        return replace(
            self,
            passes=passes,
            certified=tuple(replace(rule, limit=min(rule.limit, limit)) for rule in rules),
            showcase=self.showcase if limit >= max(SHOWCASE_PASSES) else None,
        )

    def within(self, hours: float, images: Tensor) -> Recipe:
        """Return the recipe with as many epochs as both training runs can finish within `hours` on this machine."""

        def configs(epochs: int) -> list[TrainConfig]:
            return [training.config for training in self.with_epochs(epochs).trainings.values()]

        return self.with_epochs(epochs_within(configs, self.network, self.deformation, images, 3600 * hours))
