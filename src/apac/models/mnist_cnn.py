"""The paper's MNIST-CNN: 1×28² → C5 20×24² → P2 20×12² → C5 40×8² → P2 40×4² → F 150 → F 10."""

from torch import nn


def mnist_cnn(channels: int = 1, classes: int = 10) -> nn.Sequential:
    """Build the network for images of 28 × 28."""
    # ReLU after max pooling equals ReLU before it, bit for bit, on a quarter of the values.
    return nn.Sequential(
        nn.Conv2d(channels, 20, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(20, 40, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(40 * 4 * 4, 150),
        nn.ReLU(),
        nn.Linear(150, classes),
    )
