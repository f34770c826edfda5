"""APAC as a scikit-learn estimator, for vectors, time series and images."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from numbers import Integral
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from apac.errors import InputError, missing

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise missing("scikit-learn", "sklearn") from error

from apac.classify.classifier import Classifier
from apac.classify.combine import COMBINATIONS, Combine
from apac.classify.decision import Decision
from apac.classify.rules.base import Rule
from apac.classify.rules.certified import Certified
from apac.deform.base import Deformation
from apac.deform.jitter import Jitter
from apac.randomness import generator, seeding
from apac.training import loop
from apac.training.config import TrainConfig
from apac.validation import validate_integer, validate_number, validate_positive

Shape = tuple[int, int, int]
Builder = Callable[[Shape, int], nn.Module]  # from the shape of a sample (C, H, W) and the number of classes

N_PASSES_SAMPLES = 1000  # maximum number of training samples for the mean `n_passes_`


class ApacClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Neural network trained on random deformations, with predictions averaged over deformations (APAC).

    X is (N, features), standardized by feature; (N, channels, time steps) for time series, standardized by channel; or
    (N, channels, height, width) for images, which are not standardized.

    Parameters
    ----------
    deformation : Deformation, default Jitter(0.1)
        Class-preserving deformation, applied to standardized data.
    network : callable, default a multi-layer perceptron
        Function of the sample shape and the number of classes that builds a module which returns logits. The shape is
        (1, 1, features), (channels, 1, time steps) or (channels, height, width).
    hidden_layer_sizes : tuple of int
        Sizes of the hidden layers of the default network.
    rule : FixedPasses or Certified, default Certified(error=0.01, limit=1024)
        Stopping rule for the passes of a sample.
    combine : "product" or "sum"
        Combination of the softmaxes of all passes; the paper uses the product.
    epochs : int
        Number of epochs. One epoch has as many virtual samples as there are training samples.
    batch_size : int
        Number of virtual samples per step.
    learning_rate : float
        Maximum learning rate of SGD with momentum: linear warm-up, then cosine decay.
    weight_decay : float
        L2 penalty on the weights, not on the biases.
    random_state : int, RandomState or None
        Determines the initial weights and the deformations.

    Attributes
    ----------
    classes_ : the class labels
    n_features_in_ : the number of features, or of channels
    n_passes_ : the mean number of passes per decision, over at most 1,000 training samples
    network_ : the trained module
    classifier_ : the `apac.Classifier` that decides standardized samples (N, C, H, W)

    Examples
    --------
    >>> import apac
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = apac.ApacClassifier(apac.Jitter(0.2), epochs=5, random_state=0).fit(X, y)
    >>> classifier.predict(X).shape
    (150,)
    """

    def __init__(
        self,
        deformation: Deformation | None = None,
        *,
        network: Builder | None = None,
        hidden_layer_sizes: tuple[int, ...] = (64,),
        rule: Rule | None = None,
        combine: Combine = "product",
        epochs: int = 60,
        batch_size: int = 32,
        learning_rate: float = 0.03,
        weight_decay: float = 1e-4,
        random_state: Any = None,
    ) -> None:
        self.deformation = deformation
        self.network = network
        self.hidden_layer_sizes = hidden_layer_sizes
        self.rule = rule
        self.combine = combine
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> ApacClassifier:
        """Train on X with labels y (N,)."""
        array: NDArray[np.float64]
        array, targets = validate_data(self, X, y, dtype=np.float64, allow_nd=True)
        check_classification_targets(targets)
        self.classes_, encoded = np.unique(targets, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y has only one class, {str(self.classes_[0])!r}; a classifier needs at least two.")
        deformation = self._validate_parameters()
        rule = Certified(error=0.01, limit=1024) if self.rule is None else self.rule
        self._shape = array.shape[1:]
        self._scaler = self._fit_scaler(array)
        samples = self._to_samples(array)
        seed = int(check_random_state(self.random_state).randint(2**31))
        _, channels, height, width = deformation.preprocess(samples[:1]).shape
        with seeding() as seed_all:
            seed_all(seed)
            self.network_ = self._build((channels, height, width))
        self.classifier_ = Classifier(self.network_, deformation, rule, seed=seed, combine=self.combine)
        outputs = self.classifier_.score(samples[:2], 0, 1).log_sum.shape[1]
        if outputs != len(self.classes_):
            raise InputError(f"the network must have {len(self.classes_)} outputs, one for each class, got {outputs}.")
        samples = samples.to(next(self.network_.parameters()).dtype)
        self._train(deformation, samples, torch.from_numpy(encoded.astype(np.int64)), seed)
        subset = torch.randperm(len(samples), generator=generator(seed, "passes", 0))[:N_PASSES_SAMPLES]
        self.n_passes_ = float(self.classifier_.decide(samples[subset]).passes.double().mean())
        return self

    def decide(self, X: ArrayLike) -> Decision:
        """Return the full decision: labels as indices into `classes_`, margins, passes and stopping reasons."""
        samples = self._validate_samples(X)
        return self.classifier_.decide(samples)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict the class label of each sample."""
        labels = self._decide_all(X).labels.numpy()
        return cast(NDArray[Any], self.classes_[labels])

    def predict_plain(self, X: ArrayLike) -> NDArray[Any]:
        """Return the plain prediction, one pass of each undeformed sample, for comparison."""
        samples = self._validate_samples(X)
        log_probabilities = self.classifier_.plain(samples)
        return cast(NDArray[Any], self.classes_[log_probabilities.argmax(dim=1).numpy()])

    def predict_log_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the normalized log of the product of softmaxes, or of their sum, (N, K)."""
        decision = self._decide_all(X)
        scores = COMBINATIONS[decision.combine].select(decision.log_scores, decision.probabilities.log())
        return cast(NDArray[np.float64], scores.log_softmax(dim=1).numpy())

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the normalized product of softmaxes, or their mean, (N, K)."""
        return np.exp(self.predict_log_proba(X))

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return `predict_log_proba`, (N, K); for two classes, the second minus the first column, (N,)."""
        scores = self.predict_log_proba(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def _validate_parameters(self) -> Deformation:
        # On a copy, because fit must not change the parameters of an estimator.
        parameters = copy.copy(self)
        validate_integer(parameters, "epochs", minimum=1)
        validate_integer(parameters, "batch_size", minimum=1)
        validate_positive(parameters, "learning_rate")
        validate_number(parameters, "weight_decay", minimum=0)
        if self.deformation is None:
            return Jitter(0.1)
        if not isinstance(self.deformation, Deformation):
            raise InputError(f"the deformation must be a Deformation, got {self.deformation!r}.")
        return self.deformation

    def _validate_samples(self, X: ArrayLike) -> Tensor:
        """Validate X and return standardized samples (N, C, H, W)."""
        check_is_fitted(self)
        array: NDArray[np.float64] = validate_data(self, X, dtype=np.float64, allow_nd=True, reset=False)
        if array.shape[1:] != self._shape:
            raise InputError(
                f"samples have the shape {array.shape[1:]}, but the classifier was fitted on {self._shape}."
            )
        return self._to_samples(array)

    def _decide_all(self, X: ArrayLike) -> Decision:
        decision = self.decide(X)
        if "nan" in decision.stopped:
            raise InputError(f"the network returned NaN for sample {decision.stopped.index('nan')}.")
        return decision

    def _fit_scaler(self, X: NDArray[np.float64]) -> StandardScaler | None:
        if X.ndim > 4:
            raise InputError(
                f"X must be (N, features), (N, channels, time steps) or images (N, C, H, W), got {X.shape}."
            )
        return None if X.ndim == 4 else StandardScaler().fit(_scaler_rows(X))

    def _to_samples(self, X: NDArray[np.float64]) -> Tensor:
        """Return X as standardized samples (N, C, H, W)."""
        if self._scaler is None:
            return torch.tensor(X)  # a copy, because torch warns about read-only arrays
        scaled = self._scaler.transform(_scaler_rows(X))  # (N, features) or (N · steps, channels)
        if X.ndim == 2:
            return torch.from_numpy(scaled)[:, None, None, :]
        n, channels, steps = X.shape
        return torch.from_numpy(scaled.reshape(n, steps, channels)).transpose(1, 2)[:, :, None, :].contiguous()

    def _build(self, shape: Shape) -> nn.Module:
        if self.network is None:
            return self._perceptron(shape, len(self.classes_))
        if isinstance(self.network, nn.Module) or not callable(self.network):
            raise InputError(
                f"network must be a function that builds a module, such as lambda shape, classes: ..., got "
                f"{type(self.network).__name__}."
            )
        network = self.network(shape, len(self.classes_))
        if not isinstance(network, nn.Module) or not any(True for _ in network.parameters()):
            raise InputError(f"network must return a torch module with parameters, got {type(network).__name__}.")
        return network

    def _perceptron(self, shape: Shape, classes: int) -> nn.Module:
        hidden = self.hidden_layer_sizes
        if not isinstance(hidden, tuple | list) or not all(isinstance(size, Integral) and size > 0 for size in hidden):
            raise InputError(f"hidden_layer_sizes must be positive integers, such as (64,), got {hidden!r}.")
        sizes = [int(np.prod(shape)), *map(int, hidden)]
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        # Double precision: scikit-learn requires that a result does not depend on the batch to about 1e-7.
        return nn.Sequential(*layers, nn.Linear(sizes[-1], classes)).double()

    def _train(self, deformation: Deformation, samples: Tensor, labels: Tensor, seed: int) -> None:
        config = TrainConfig(
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            optimizer="sgd",
            schedule="cosine",
            warmup=0.05,
            weight_decay=self.weight_decay,
            seed=seed,
        )
        state = loop.init_state(self.network_, config)
        loop.run_epochs(state, config, deformation, samples, labels, (samples[:0], labels[:0]), prefetch=False)
        self.network_.eval()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def _scaler_rows(X: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return X with one column per feature, or per channel for time series (N, channels, steps)."""
    return X if X.ndim == 2 else X.transpose(0, 2, 1).reshape(-1, X.shape[1])
