"""The paper's CIFAR-10-CNN.

3×32² → C3 64×30² → P3 64×10² → C3 128×8² → P2 128×4² → C3 256×2² → P2 256×1² → F 128 → F 10
"""

from torch import nn


def cifar10_cnn(channels: int = 3, classes: int = 10) -> nn.Sequential:
    """Build the network for images of 32 × 32."""
    # ReLU after max pooling equals ReLU before it, bit for bit, on fewer values.
    return nn.Sequential(
        nn.Conv2d(channels, 64, 3),
        nn.MaxPool2d(3),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(128, 256, 3),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )
