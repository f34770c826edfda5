"""The paper's MLPs: three weight layers, 784 → 2500 → 2000 → 10 and 3072 → 4096 → 3072 → 10."""

from torch import nn


def mnist_mlp(channels: int = 1, classes: int = 10) -> nn.Sequential:
    """Build the network for images of 28 × 28."""
    return _three_layers(channels * 28 * 28, 2500, 2000, classes)


def cifar10_mlp(channels: int = 3, classes: int = 10) -> nn.Sequential:
    """Build the network for images of 32 × 32."""
    return _three_layers(channels * 32 * 32, 4096, 3072, classes)


def _three_layers(inputs: int, first: int, second: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, first),
        nn.ReLU(),
        nn.Linear(first, second),
        nn.ReLU(),
        nn.Linear(second, outputs),
    )
