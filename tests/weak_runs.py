"""A run that makes errors, for tests of what a report says of them."""

from __future__ import annotations

from dataclasses import replace

import torch

import apac
from apac.data.base import Dataset
from apac.randomness import generator
from apac.runs.run import Run


def weak_run(dataset: Dataset) -> Run:
    """Return the shipped run on MNIST with a linear network that compares a digit with noisy means of the classes."""
    images, labels = dataset.train_images, dataset.train_labels
    means = torch.stack([images[labels == c].float().mean(dim=0) for c in range(10)]).flatten(1) / 255
    weights = means + 0.3 * torch.randn(10, 784, generator=generator(0, "test", 1))
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    network[1].load_state_dict({"weight": weights, "bias": -weights.square().sum(dim=1) / 2})
    return replace(apac.load("mnist-cnn"), network=network)
