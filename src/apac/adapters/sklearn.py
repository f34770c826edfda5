"""APAC as a scikit-learn estimator, for vectors, time series and images."""

from __future__ import annotations

import copy
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from apac.errors import InputError, missing

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise missing("scikit-learn", "sklearn") from error

from apac.adapters.estimator_fit import Training, TrainingData
from apac.adapters.estimator_input import infer_input_type
from apac.adapters.estimator_network import Builder
from apac.adapters.nested_parameters import get_parameters, with_parameters
from apac.adapters.sample_weights import combined_weights
from apac.classify.combine import Combine
from apac.classify.decision import Decision
from apac.classify.rules.base import Rule
from apac.classify.rules.certified import Certified
from apac.deform.base import Deformation, InputType
from apac.deform.jitter import Jitter
from apac.evaluation.tuning import validate_tunable
from apac.randomness import generator
from apac.training.config import TrainConfig
from apac.validation import validate_integer, validate_number, validate_positive

# The defaults of the parameters that have parameters of their own.
DEFAULTS: dict[str, Any] = {"deformation": Jitter(0.1), "rule": Certified(error=0.01, limit=1024)}
N_PASSES_SAMPLES = 1000  # maximum number of training samples for the mean `n_passes_`


class ApacClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Neural network trained on random deformations, with predictions averaged over deformations (APAC).

    X is (N, features) for vectors, (N, channels, time steps) for time series or (N, channels, height, width) for images
    with pixels in 0 … 1. Vectors and series are standardized per feature or channel before the deformation, so that
    noise is in units of a standard deviation. Images are standardized per channel after the deformation, in front of
    the network.

    Parameters
    ----------
    deformation : Deformation, default Jitter(0.1)
        Class-preserving deformation, made for the type of data in X. Its parameters are also parameters of the
        estimator: `deformation__std`, or `deformation__homography__std` for a part of a `Compose`.
    network : callable, default a multi-layer perceptron
        Function of the sample shape and the number of classes that builds a module which returns logits. The shape is
        (1, 1, features), (channels, 1, time steps) or (channels, height, width).
    hidden_layer_sizes : tuple of int
        Sizes of the hidden layers of the default network.
    rule : FixedPasses or Certified, default Certified(error=0.01, limit=1024)
        Stopping rule for the passes of a sample. Its parameters are `rule__error` etc.
    combine : "product" or "sum"
        Combination of the softmaxes of all passes; the paper uses the product. With `tune`, leave it at "product".
    tune : bool
        Whether to choose the strength of the deformation, the combination and the temperature of the probabilities, by
        five-fold cross-validation: five more fits. If the plain prediction does better, it is used. The rule
        `Exhaustive` is kept at strength 1 only; random passes decide at others.
    epochs : int
        Number of epochs. One epoch has as many virtual samples as there are training samples.
    batch_size : int
        Number of virtual samples per step.
    learning_rate : float
        Maximum learning rate of SGD with momentum: linear warm-up, then cosine decay.
    weight_decay : float
        L2 penalty on the weights, not on the biases.
    class_weight : dict, "balanced" or None
        Weights of the classes by label; "balanced" gives all classes the same total weight.
    input_type : "vectors", "series", "images" or None
        What X holds. None determines it from the dimensions of X; an X of three dimensions may hold gray images or
        series, and needs this parameter unless the deformation is made for series only.
    random_state : int, RandomState or None
        Determines the initial weights and the deformations.
    verbose : bool
        Whether to print the loss of each epoch.

    Attributes
    ----------
    classes_ : the class labels
    n_features_in_ : the number of features, or of channels
    loss_curve_ : the mean loss of each epoch, on virtual samples drawn by their weights
    n_passes_ : the mean number of passes per decision, over at most 1,000 training samples
    network_ : the trained module
    classifier_ : the `apac.Classifier` that decides samples (N, C, H, W)
    strength_ : the strength of the deformation in decisions; 1 is that of the training, 0 the plain prediction
    temperature_ : the temperature of the probabilities; 1 if they are not tuned
    choice_ : the `apac.Choice` with what was compared; None if nothing was tuned

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
        tune: bool = False,
        epochs: int = 60,
        batch_size: int = 32,
        learning_rate: float = 0.03,
        weight_decay: float = 1e-4,
        class_weight: dict[Any, float] | str | None = None,
        input_type: InputType | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.deformation = deformation
        self.network = network
        self.hidden_layer_sizes = hidden_layer_sizes
        self.rule = rule
        self.combine = combine
        self.tune = tune
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.class_weight = class_weight
        self.input_type = input_type
        self.random_state = random_state
        self.verbose = verbose

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; if `deep`, with those of the deformation and the rule."""
        parameters: dict[str, Any] = super().get_params(deep=deep)
        if deep:
            for owner in DEFAULTS:
                nested = get_parameters(self._resolved(owner))
                parameters |= {f"{owner}__{name}": value for name, value in nested.items()}
        return parameters

    def set_params(self, **params: Any) -> ApacClassifier:
        """Set parameters by name. A parameter of the deformation replaces the deformation, which is immutable."""
        nested: dict[str, dict[str, Any]] = {}
        own: dict[str, Any] = {}
        for name, value in params.items():
            owner, separator, rest = name.partition("__")
            if separator and owner in DEFAULTS:
                nested.setdefault(owner, {})[rest] = value
            else:
                own[name] = value
        super().set_params(**own)
        for owner, changes in nested.items():
            setattr(self, owner, with_parameters(self._resolved(owner), changes))
        return self

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> ApacClassifier:
        """Train on X with labels y (N,).

        Samples are drawn in proportion to `sample_weight` (N,) times the weight of their class. A weight of 0 removes a
        sample.
        """
        array: NDArray[np.float64]
        array, targets = validate_data(self, X, y, dtype=np.float64, allow_nd=True)
        check_classification_targets(targets)
        self._validate_parameters()
        weights = combined_weights(sample_weight, self.class_weight, targets)
        self.classes_, encoded = np.unique(targets, return_inverse=True)
        if weights is not None:
            kept = weights > 0
            array, encoded, weights = array[kept], encoded[kept], weights[kept]
        if len(np.unique(encoded)) < 2:
            only = str(self.classes_[encoded[0]])
            with_weight = "" if weights is None else " with a weight above 0"
            raise InputError(f"y has only one class{with_weight}, {only!r}; a classifier needs at least two.")
        if weights is not None and (weights == weights[0]).all():
            weights = None  # the same draws as without weights
        data = TrainingData(
            array,
            torch.from_numpy(encoded.astype(np.int64)),
            weights,
            len(self.classes_),
            infer_input_type(array, self._resolved("deformation"), self.input_type),
        )
        self._shape = array.shape[1:]
        seed = int(check_random_state(self.random_state).randint(2**31))
        training = self._training(seed)
        trained = training.run(data)
        self._to_samples, self.network_, self.loss_curve_ = trained.to_samples, trained.network, trained.loss_curve
        self.choice_ = training.tune(data) if self.tune else None
        self.classifier_ = trained.classifier if self.choice_ is None else self.choice_.apply(trained.classifier)
        self.strength_ = 1.0 if self.choice_ is None else self.choice_.strength
        self.temperature_ = self.classifier_.temperature
        samples = self._to_samples(array)
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
        """Return the normalized log of the product of softmaxes, or of their sum, with the temperature, (N, K)."""
        return cast(NDArray[np.float64], self._decide_all(X).log_probabilities.numpy())

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the normalized product of softmaxes, or their mean, with the temperature, (N, K)."""
        return np.exp(self.predict_log_proba(X))

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return `predict_log_proba`, (N, K); for two classes, the second minus the first column, (N,)."""
        scores = self.predict_log_proba(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def _resolved(self, name: str) -> Any:
        """Return the deformation or the rule, the default if it is None."""
        value = getattr(self, name)
        return DEFAULTS[name] if value is None else value

    def _validate_parameters(self) -> None:
        # On a copy, because fit must not change the parameters of an estimator.
        parameters = copy.copy(self)
        validate_integer(parameters, "epochs", minimum=1)
        validate_integer(parameters, "batch_size", minimum=1)
        validate_positive(parameters, "learning_rate")
        validate_number(parameters, "weight_decay", minimum=0)
        if not isinstance(self._resolved("deformation"), Deformation):
            raise InputError(f"the deformation must be a Deformation, got {self.deformation!r}.")
        if not isinstance(self.tune, bool | np.bool_):
            raise InputError(f"tune must be True or False, got {self.tune!r}.")
        if self.tune:
            if self.combine != "product":
                raise InputError(f"tune=True chooses the combination itself; omit combine={self.combine!r}.")
            validate_tunable(self._resolved("deformation"))

    def _validate_samples(self, X: ArrayLike) -> Tensor:
        """Validate X and return samples (N, C, H, W)."""
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

    def _training(self, seed: int) -> Training:
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
        return Training(
            self._resolved("deformation"),
            self._resolved("rule"),
            self.combine,
            self.network,
            self.hidden_layer_sizes,
            config,
            bool(self.verbose),
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags
