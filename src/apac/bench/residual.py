"""A residual network for images of 224 × 224, with the layers of ResNet-18 (He et al., 2016)."""

from __future__ import annotations

from torch import Tensor, nn


class Block(nn.Module):
    """Two 3 × 3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = stride == 1 and inputs == outputs
        projection = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
        self.shortcut = nn.Identity() if same else nn.Sequential(*projection)
        self.activation = nn.ReLU()

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.activation(self.body(images) + self.shortcut(images))
        return result


def resnet18(classes: int = 10) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    for inputs, outputs in ((64, 64), (64, 128), (128, 256), (256, 512)):
        layers += [Block(inputs, outputs, 1 if inputs == outputs else 2), Block(outputs, outputs, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))
