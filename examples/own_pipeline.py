"""A model trained with the augmentation of another library: plain and APAC error.

pip install kornia; then python examples/own_pipeline.py
"""

from __future__ import annotations

import sys

import kornia.augmentation as augmentation
import torch
from torch import Tensor, nn

import apac
from apac import data

PIPELINE = augmentation.AugmentationSequential(
    augmentation.RandomAffine(degrees=12.0, translate=(0.08, 0.08), scale=(0.85, 1.15), shear=10.0, p=1.0),
    augmentation.RandomPerspective(0.2, p=0.5),
    data_keys=["input"],
)


def trained(images: Tensor, labels: Tensor, epochs: int) -> nn.Module:
    """Train a model. Any module that returns logits will do."""
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(1, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    model = nn.Sequential(*layers, nn.Linear(512, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(50):
            loss = nn.functional.cross_entropy(model(PIPELINE(images[batch])), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


def main(images: int = 300, epochs: int = 5) -> tuple[float, float]:
    digits = data.load("mnist-5k")
    model = trained(digits.train_images.float() / 255, digits.train_labels, epochs)
    x, y = digits.test_images[:images].float() / 255, digits.test_labels[:images]

    # The pipeline as a deformation, the classifier, the decision.
    u = apac.from_kornia(PIPELINE)
    classifier = apac.Classifier(model, u, rule=apac.Certified(error=0.01, limit=64))
    decision = classifier.decide(x)

    plain = (classifier.plain(x).argmax(dim=1) != y).double().mean().item()
    error = (decision.labels != y).double().mean().item()
    mean, at_limit = decision.passes.double().mean(), decision.stopped.count("limit")
    print(
        f"{images:,} digits: plain {plain:.2%}, APAC {error:.2%}; {mean:.1f} passes per image, {at_limit} not certified"
    )
    return plain, error


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
