"""What `fit` of an estimator does with valid data: train a network, and tune it by cross-validation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from apac.adapters.estimator_input import SampleMaker, fit_standardization
from apac.adapters.estimator_network import Builder, build_network, train_network
from apac.classify.choice import Choice
from apac.classify.classifier import Classifier
from apac.classify.combine import Combine
from apac.classify.rules.base import Rule
from apac.data.normalize import Identity, Normalization
from apac.deform.base import Deformation, InputType
from apac.errors import InputError
from apac.evaluation.calibration import FOLDS
from apac.evaluation.tuning import MIN_IMAGES, choose, passes_to_compare, pool, score_candidates
from apac.randomness import generator, seeding
from apac.training.config import TrainConfig

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Valid samples with their labels."""

    array: Array  # (N, ...)
    labels: Tensor  # (N,) int64, 0 … K − 1
    weights: Array | None  # (N,), above 0
    classes: int
    input_type: InputType

    def select(self, rows: NDArray[np.bool_]) -> TrainingData:
        weights = None if self.weights is None else self.weights[rows]
        return replace(self, array=self.array[rows], labels=self.labels[torch.from_numpy(rows)], weights=weights)


@dataclass(frozen=True, eq=False)
class Trained:
    """A network, and how X is converted to its samples."""

    to_samples: SampleMaker
    network: nn.Module
    classifier: Classifier
    loss_curve: list[float]


@dataclass(frozen=True, eq=False)
class Training:
    """The settings of a training."""

    deformation: Deformation
    rule: Rule
    combine: Combine
    builder: Builder | None
    hidden_layer_sizes: tuple[int, ...]
    config: TrainConfig
    verbose: bool

    def run(self, data: TrainingData) -> Trained:
        """Train a network on all of the data."""
        to_samples = SampleMaker.fit(data.array, data.weights, data.input_type)
        samples, seed = to_samples(data.array), self.config.seed
        undeformed = self.deformation.preprocess(samples)  # as the network sees it
        _, channels, height, width = undeformed.shape
        with seeding() as seed_all:
            seed_all(seed)
            network = build_network(self.builder, self.hidden_layer_sizes, (channels, height, width), data.classes)
        dtype = next(network.parameters()).dtype
        normalization: Normalization = Identity()
        if data.input_type == "images":
            normalization = fit_standardization(undeformed, data.weights, dtype)
        whole = normalization.in_front_of(network)
        classifier = Classifier(whole, self.deformation, self.rule, seed=seed, combine=self.combine)
        outputs = classifier.score(samples[:2], 0, 1).log_sum.shape[1]
        if outputs != data.classes:
            raise InputError(f"the network must have {data.classes} outputs, one for each class, got {outputs}.")
        loss_curve = train_network(
            network,
            self.config,
            self.deformation,
            samples.to(dtype),
            data.labels,
            normalization.standardize,
            data.weights,
            verbose=self.verbose,
        )
        return Trained(to_samples, network, classifier, loss_curve)

    def tune(self, data: TrainingData) -> Choice:
        """Choose how to decide, by cross-validation: each sample is measured by a network that was not trained on it.

        Every sample counts once, whatever its weight. As in scikit-learn's searches, the best candidate is chosen:
        a standard error of small data sets would allow almost any.
        """
        if len(data.array) < MIN_IMAGES:
            raise InputError(f"{len(data.array)} samples are too few for tune=True; it needs at least {MIN_IMAGES}.")
        passes = passes_to_compare(self.rule)
        fold = _stratified_folds(data.labels, self.config.seed)
        parts = []
        for k in range(FOLDS):
            trained, held_out = self.run(data.select(fold != k)), data.select(fold == k)
            samples = trained.to_samples(held_out.array)
            parts.append(score_candidates(trained.classifier, samples, held_out.labels, passes=passes))
        return choose(pool(parts), passes, self.config.seed, tolerance=0)


def _stratified_folds(labels: Tensor, seed: int) -> NDArray[np.int64]:
    """Return the fold of each sample, (N,): the samples of each class, in random order, are dealt out in turn."""
    shuffled = torch.randperm(len(labels), generator=generator(seed, "folds", 0))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    fold = torch.empty_like(labels)
    fold[by_class] = torch.arange(len(labels)) % FOLDS
    return fold.numpy()
