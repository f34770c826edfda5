"""The four networks of the paper, layer by layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import apac
from apac import models
from apac.randomness import generator

SHAPE = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}


def build(name: str, seed: int = 0) -> nn.Sequential:
    return models.build(name, generator=generator(seed, "test", 0))


@pytest.mark.parametrize(
    ("name", "count"),
    [
        # weights and biases, by hand from the paper's table of architectures
        ("mnist-cnn", (25 * 1 + 1) * 20 + (25 * 20 + 1) * 40 + (40 * 16 + 1) * 150 + (150 + 1) * 10),
        ("mnist-mlp", (784 + 1) * 2500 + (2500 + 1) * 2000 + (2000 + 1) * 10),
        ("cifar10-cnn", (9 * 3 + 1) * 64 + (9 * 64 + 1) * 128 + (9 * 128 + 1) * 256 + (256 + 1) * 128 + (128 + 1) * 10),
        ("cifar10-mlp", (3072 + 1) * 4096 + (4096 + 1) * 3072 + (3072 + 1) * 10),
    ],
)
def test_parameter_counts_are_the_papers(name, count):
    assert sum(p.numel() for p in build(name).parameters()) == count


def test_the_mnist_mlp_has_around_7_million_parameters_as_the_paper_says():
    assert sum(p.numel() for p in build("mnist-mlp").parameters()) == pytest.approx(7.0e6, rel=0.005)


@pytest.mark.parametrize(
    ("name", "maps"),
    [
        ("mnist-cnn", [(20, 24, 24), (20, 12, 12), (40, 8, 8), (40, 4, 4), (150,), (10,)]),
        (
            "cifar10-cnn",
            [(64, 30, 30), (64, 10, 10), (128, 8, 8), (128, 4, 4), (256, 2, 2), (256, 1, 1), (128,), (10,)],
        ),
        ("mnist-mlp", [(2500,), (2000,), (10,)]),
        ("cifar10-mlp", [(4096,), (3072,), (10,)]),
    ],
)
def test_map_counts_and_sizes_are_the_papers(name, maps):
    x, seen = torch.zeros(2, *SHAPE[name.split("-")[0]]), []
    for layer in build(name):
        x = layer(x)
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d | nn.Linear):
            seen.append(tuple(x.shape[1:]))
    assert seen == maps


@pytest.mark.parametrize("name", models.BUILDERS)
def test_initial_weights_are_he_normal_and_depend_only_on_the_generator(name):
    torch.manual_seed(0)
    first = build(name)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    again, other = build(name), build(name, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    for layer, same, different in zip(first, again, other, strict=True):
        if isinstance(layer, nn.Conv2d | nn.Linear):
            assert isinstance(same, type(layer)) and isinstance(different, type(layer))
            fan_in = layer.weight[0].numel()
            spread = layer.weight.std().item() * fan_in**0.5
            assert spread == pytest.approx(2**0.5, abs=5 / layer.weight.numel() ** 0.5)
            assert not layer.bias.any()
            assert torch.equal(layer.weight, same.weight)
            assert not torch.equal(layer.weight, different.weight)


@pytest.mark.parametrize("name", ["mnist-cnn", "cifar10-cnn"])
def test_relu_after_pooling_equals_relu_before_it(name, random):
    network = build(name)
    x = torch.randn(4, *SHAPE[name.split("-")[0]], generator=random)
    before = x
    layers = list(network)
    for i, layer in enumerate(layers):
        if isinstance(layer, nn.Conv2d):
            before = layer(before).relu()
        elif not (isinstance(layer, nn.ReLU) and isinstance(layers[i - 1], nn.MaxPool2d)):
            before = layer(before)
    # the same convolutions on the same values; pooling and ReLU round nothing
    assert torch.equal(network(x), before)


def test_an_unknown_network_is_rejected_in_one_sentence():
    with pytest.raises(apac.InputError, match=r"there is no network 'rnn'; choose one of mnist-cnn, .*, resnet"):
        build("rnn")
