"""scikit-learn's handwritten digits in a pipeline: plain and APAC error over seeds.

python examples/digits.py
"""

from __future__ import annotations

import sys

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

import apac
from seeds import report


def as_images(X):
    """Convert rows of 64 values in [0, 16] to images (1, 8, 8) in [0, 1]."""
    return X.reshape(-1, 1, 8, 8) / 16


def pipeline(deformation: apac.Deformation, epochs: int, limit: int, seed: int) -> Pipeline:
    rule = apac.Certified(error=0.01, limit=limit)
    classifier = apac.ApacClassifier(
        deformation, hidden_layer_sizes=(128,), rule=rule, epochs=epochs, learning_rate=0.1, random_state=seed
    )
    return Pipeline([("images", FunctionTransformer(as_images)), ("apac", classifier)])


def main(seeds: int = 5, epochs: int = 60, limit: int = 256) -> dict[str, list[float]]:
    u = apac.Compose(apac.Homography(std=0.08), apac.Elastic(sigma=2.0, alpha=4.0))
    X, y = load_digits(return_X_y=True)
    errors: dict[str, list[float]] = {"original data, plain": [], "deformed data, plain": [], "deformed data, APAC": []}
    for seed in range(seeds):
        X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, stratify=y, random_state=seed)
        original = pipeline(apac.Compose(), epochs, limit, seed).fit(X_train, y_train)
        deformed = pipeline(u, epochs, limit, seed).fit(X_train, y_train)
        errors["original data, plain"].append(1 - original.score(X_test, y_test))
        plain = deformed["apac"].predict_plain(as_images(X_test))
        errors["deformed data, plain"].append((plain != y_test).mean())
        errors["deformed data, APAC"].append(1 - deformed.score(X_test, y_test))
    print(report(f"scikit-learn's digits, 898 to train and 899 to test, {seeds} seeds", errors))
    return errors


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
