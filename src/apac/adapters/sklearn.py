"""APAC as a scikit-learn estimator, for vectors, series and images."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from numbers import Integral
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from apac.classify.classifier import Classifier
from apac.classify.decision import Decision
from apac.classify.rules.base import Combine, Rule
from apac.classify.rules.certified import Certified
from apac.deform.base import Deformation
from apac.deform.jitter import Jitter
from apac.errors import InputError
from apac.randomness import generator, seeding
from apac.training import loop
from apac.training.config import TrainConfig

Shape = tuple[int, int, int]
Builder = Callable[[Shape, int], nn.Module]  # of the shape of a sample (C, H, W) and the number of classes

SAMPLED = 1000  # training samples that `n_passes_` is the mean of


class ApacClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A network trained with on-line deformation and decided by APAC.

    X is (N, features), which are standardized; (N, channels, moments) for series, whose channels are standardized; or
    (N, channels, height, width) for images, which stay as they are.

    Parameters
    ----------
    deformation : Deformation, default Jitter(0.1)
        What a sample may become without becoming another class; of standardized numbers.
    network : callable, default a multi-layer perceptron
        Makes a module from the shape of a sample, (1, 1, features), (channels, 1, moments) or (channels, height,
        width), and the number of classes. It returns logits.
    hidden : tuple of int
        The hidden layers of the default network.
    rule : FixedPasses or Certified, default Certified(error=0.01, limit=1024)
        When a sample has had passes enough.
    combine : "product" or "sum"
        The paper's product of softmaxes, or their sum.
    epochs : int
        How often the training sees as many virtual samples as there are samples.
    batch : int
        Virtual samples a step.
    rate : float
        Of momentum SGD, at its largest: it warms up, and falls by a cosine.
    l2 : float
        Factor of the L2 term on the weights.
    random_state : int, RandomState or None

    Attributes
    ----------
    classes_ : the classes
    n_features_in_ : the features, or channels
    n_passes_ : the mean number of passes that training samples take to be decided (1,000 of them at most)
    network_ : the trained module
    classifier_ : the `apac.Classifier` that decides standardized samples, (N, C, H, W)
    """

    def __init__(
        self,
        deformation: Deformation | None = None,
        *,
        network: Builder | None = None,
        hidden: tuple[int, ...] = (64,),
        rule: Rule | None = None,
        combine: Combine = "product",
        epochs: int = 60,
        batch: int = 32,
        rate: float = 0.03,
        l2: float = 1e-4,
        random_state: Any = None,
    ) -> None:
        self.deformation = deformation
        self.network = network
        self.hidden = hidden
        self.rule = rule
        self.combine = combine
        self.epochs = epochs
        self.batch = batch
        self.rate = rate
        self.l2 = l2
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> ApacClassifier:
        """Train on X with labels y (N,)."""
        given: tuple[NDArray[np.float64], NDArray[Any]] = validate_data(self, X, y, dtype=np.float64, allow_nd=True)
        array, targets = given
        check_classification_targets(targets)
        self.classes_, encoded = np.unique(targets, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y has one class only, {str(self.classes_[0])!r}; a classifier needs two or more.")
        self._shape = array.shape[1:]
        self._standardize(array)
        seed = int(check_random_state(self.random_state).randint(2**31))
        samples = self._samples(array)
        deformation = Jitter(0.1) if self.deformation is None else self.deformation
        rule = Certified(error=0.01, limit=1024) if self.rule is None else self.rule
        if not isinstance(deformation, Deformation):
            raise InputError(f"the deformation must be a Deformation, got {deformation!r}.")
        config = TrainConfig(
            epochs=self.epochs,
            batch_size=self.batch,
            learning_rate=self.rate,
            schedule="cosine",
            warmup=0.05,
            weight_decay=self.l2,
            seed=seed,
        )
        _, channels, height, width = deformation.preprocess(samples[:1]).shape
        with seeding() as seed_all:
            seed_all(seed)
            self.network_ = self._build((channels, height, width))
        self.classifier_ = Classifier(self.network_, deformation, rule, seed=seed, combine=self.combine)
        classes = self.classifier_.score(samples[:2], 0, 1).log_sum.shape[1]
        if classes != len(self.classes_):
            raise InputError(f"the network must have {len(self.classes_)} outputs, one for each class, got {classes}.")
        weight = next(self.network_.parameters())
        samples, labels = samples.to(weight.dtype), torch.from_numpy(encoded.astype(np.int64))
        state = loop.init_state(self.network_, config)
        loop.run_epochs(state, config, deformation, samples, labels, (samples[:0], labels[:0]), prefetch=False)
        self.network_.eval()
        some = torch.randperm(len(samples), generator=generator(seed, "passes", 0))[:SAMPLED]
        self.n_passes_ = float(self.classifier_.decide(samples[some]).passes.double().mean())
        return self

    def decide(self, X: ArrayLike) -> Decision:
        """The whole decision: labels as places in `classes_`, margins, passes, why each stopped."""
        samples = self._checked(X)
        return self.classifier_.decide(samples)

    def _checked(self, X: ArrayLike) -> Tensor:
        """Samples (N, C, H, W), standardized, of a shape that the classifier knows."""
        check_is_fitted(self)
        array: NDArray[np.float64] = validate_data(self, X, dtype=np.float64, allow_nd=True, reset=False)
        if array.shape[1:] != self._shape:
            raise InputError(
                f"samples have the shape {array.shape[1:]}, but those that it was fitted on {self._shape}."
            )
        return self._samples(array)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class of each sample, by the rule."""
        labels = self._decided(X).labels.numpy()
        return cast(NDArray[Any], self.classes_[labels])

    def _decided(self, X: ArrayLike) -> Decision:
        decision = self.decide(X)
        if "nan" in decision.stopped:
            first = decision.stopped.index("nan")
            raise InputError(f"the network returned NaN for sample {first} and cannot decide it.")
        return decision

    def predict_plain(self, X: ArrayLike) -> NDArray[Any]:
        """The conventional prediction, one pass of each undeformed sample, to compare with."""
        samples = self._checked(X)
        log_probabilities = self.classifier_.plain(samples)
        return cast(NDArray[Any], self.classes_[log_probabilities.argmax(dim=1).numpy()])

    def predict_log_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Normalized logarithms of what ranks the classes: the product of softmaxes, or their sum."""
        decision = self._decided(X)
        ranking = decision.log_scores if self.combine == "product" else decision.probabilities.log()
        return cast(NDArray[np.float64], ranking.log_softmax(dim=1).numpy())

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """The probability of each class: normalized products of softmaxes, or their mean."""
        return np.exp(self.predict_log_proba(X))

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """`predict_log_proba`, (N, K); of two classes how far the second is ahead, (N,)."""
        scores = self.predict_log_proba(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def _standardize(self, X: NDArray[np.float64]) -> None:
        """Learn what `_samples` subtracts and divides by."""
        axes: tuple[int, ...] = {2: (0,), 3: (0, 2), 4: ()}.get(X.ndim, ())
        if X.ndim > 4:
            raise InputError(f"X must be (N, features), (N, channels, moments) or images (N, C, H, W), got {X.shape}.")
        self._center = X.mean(axis=axes, keepdims=True) if axes else np.zeros((1,) * X.ndim)
        spread = X.std(axis=axes, keepdims=True) if axes else np.ones((1,) * X.ndim)
        # A feature that never changes has a spread of rounding errors.
        still = spread <= len(X) * np.finfo(np.float64).eps * np.abs(self._center)
        self._spread = np.where(still | (spread == 0), 1.0, spread)

    def _samples(self, X: NDArray[np.float64]) -> Tensor:
        """X as (N, C, H, W), standardized."""
        samples = torch.from_numpy((X - self._center) / self._spread)
        if samples.ndim == 2:
            return samples[:, None, None, :]
        return samples[:, :, None, :] if samples.ndim == 3 else samples

    def _build(self, shape: Shape) -> nn.Module:
        if self.network is None:
            return self._perceptron(shape, len(self.classes_))
        if isinstance(self.network, nn.Module) or not callable(self.network):
            raise InputError(
                f"network makes a module from a shape and a number of classes, got {type(self.network).__name__}; give "
                f"a function, such as lambda shape, classes: ..."
            )
        network = self.network(shape, len(self.classes_))
        if not isinstance(network, nn.Module) or not any(True for _ in network.parameters()):
            raise InputError(f"network must make a torch module with parameters, it made {type(network).__name__}.")
        return network

    def _perceptron(self, shape: Shape, classes: int) -> nn.Module:
        # In double precision a sample is decided alike, to the last digits that matter, in any batch.
        hidden = self.hidden
        if not isinstance(hidden, tuple | list) or not all(isinstance(size, Integral) and size > 0 for size in hidden):
            raise InputError(f"hidden must be the sizes of the hidden layers, such as (64,), got {hidden!r}.")
        sizes = [int(np.prod(shape)), *map(int, hidden)]
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], classes)).double()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags
