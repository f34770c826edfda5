"""Training of the last layer alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import apac
from apac.training.freeze import frozen
from small_training import noisy_network

CONFIG = apac.TrainConfig(epochs=2, batch_size=10, freeze=True, ema_decay=0.5)


def test_only_the_last_layer_changes_and_the_statistics_of_batch_normalization_are_fixed(random):
    network = noisy_network()
    network[0].bias.requires_grad_(False)  # type: ignore[union-attr, operator]
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    required = [parameter.requires_grad for parameter in network.parameters()]
    images = torch.randint(256, (40, 1, 28, 28), dtype=torch.uint8, generator=random)
    apac.train(network, (images, torch.arange(40) % 10), apac.Flip(), config=CONFIG)
    changed = {name for name, tensor in network.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"5.weight", "5.bias"}
    assert [parameter.requires_grad for parameter in network.parameters()] == required


def test_a_network_without_a_linear_layer_is_rejected_in_one_sentence():
    with pytest.raises(apac.InputError, match="freeze=True trains the last linear layer, and the network, a Conv2d"):
        frozen(nn.Conv2d(1, 1, 1)).__enter__()
