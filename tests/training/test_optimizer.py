"""Which optimizer trains what; AdamW by explicit arithmetic (Loshchilov and Hutter, "Decoupled Weight Decay", 2019)."""

from __future__ import annotations

import torch
from torch import nn

import apac
from apac import models
from apac.training.optimizer import make_optimizer


def test_adamw_decays_the_weights_only_and_independently_of_the_gradient(random):
    network = nn.Linear(3, 2)
    config = apac.TrainConfig(optimizer="adamw", learning_rate=0.1, weight_decay=0.2, momentum=0.9).resolve(None, None)
    optimizer = make_optimizer(network, config)
    expected = [parameter.detach().double() for parameter in (network.weight, network.bias)]
    means, squares = ([torch.zeros_like(value) for value in expected] for _ in range(2))
    for step in range(1, 4):
        for number, parameter in enumerate((network.weight, network.bias)):
            gradient = torch.randn(parameter.shape, generator=random)
            parameter.grad = gradient
            means[number] = 0.9 * means[number] + 0.1 * gradient
            squares[number] = 0.999 * squares[number] + 0.001 * gradient**2
            update = means[number] / (1 - 0.9**step) / ((squares[number] / (1 - 0.999**step)).sqrt() + 1e-8)
            decay = 0.2 if parameter is network.weight else 0.0
            expected[number] = expected[number] * (1 - 0.1 * decay) - 0.1 * update
        optimizer.step()
    for parameter, value in zip((network.weight, network.bias), expected, strict=True):
        # float32 against float64 arithmetic of three steps
        torch.testing.assert_close(parameter.detach().double(), value, atol=1e-5, rtol=1e-5)


def test_muon_normalizes_the_weights_whose_scale_does_not_matter(random):
    network = models.build("cifar10-modern", generator=random)
    config = apac.TrainConfig().resolve("cifar10-modern", "cifar10")
    last, biases, scale_free = make_optimizer(network, config).param_groups
    assert [p.shape[0] for p in last["params"]] == [10]
    assert len(biases["params"]) == 7  # of the whitening and of six convolutions
    assert [len(p) for p in scale_free["params"]] == [64, 64, 256, 256, 256, 256]
    assert (last["weight_decay"], biases["weight_decay"], scale_free["weight_decay"]) == (0.06, 0.0, 0.0)
    assert (last["orthogonal"], scale_free["orthogonal"], scale_free["normalized"]) == (False, True, True)
