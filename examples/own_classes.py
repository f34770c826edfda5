"""Class-distinctive deformation: a "6" upside down is a "9", so these two classes rotate less than the others.

python examples/own_classes.py
"""

from __future__ import annotations

import sys

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import apac
from seeds import report


def main(seeds: int = 5, epochs: int = 60, limit: int = 256) -> dict[str, list[float]]:
    X, y = load_digits(return_X_y=True)
    X = X.reshape(-1, 1, 8, 8) / 16
    strong, gentle = apac.Homography(std=0.15), apac.Homography(std=0.15, shear=0.05)
    deformations = {
        "the same for all": strong,
        "6 and 9 rotate less": apac.PerClass({6: gentle, 9: gentle}, default=strong, classes=10),
    }
    errors: dict[str, list[float]] = {name: [] for name in deformations}
    for seed in range(seeds):
        X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.5, stratify=y, random_state=seed)
        for name, u in deformations.items():
            rule = apac.Certified(error=0.01, limit=limit)
            classifier = apac.ApacClassifier(
                u, hidden_layer_sizes=(128,), rule=rule, epochs=epochs, learning_rate=0.1, random_state=seed
            )
            errors[name].append(1 - classifier.fit(X_train, y_train).score(X_test, y_test))
    print(report(f"scikit-learn's digits, class-distinctive deformation, {seeds} seeds", errors))
    return errors


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
