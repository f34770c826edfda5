"""Tied networks are the paper's MLPs with fewer free weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import apac
from apac import models
from apac.models.tied import untied
from apac.randomness import generator
from small_training import CONFIG, train

SHAPE = {"mnist-mlp": (1, 28, 28), "cifar10-mlp": (3, 32, 32)}


@pytest.mark.parametrize("name", models.TIED)
def test_the_untied_network_is_the_papers_mlp_and_computes_the_same(name, random):
    tied = models.build(name, generator=generator(0, "test", 0), tied=True)
    for layer in tied:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.normal_(layer.bias, generator=random)
    mlp = untied(tied, SHAPE[name])
    shapes = {key: tensor.shape for key, tensor in models.build(name, generator=random).state_dict().items()}
    assert {key: tensor.shape for key, tensor in mlp.state_dict().items()} == shapes
    images = torch.randn(5, *SHAPE[name], generator=random)
    with torch.no_grad():
        # float32 sums of up to 4,096 products, most of them zero, in another order
        torch.testing.assert_close(mlp(images), tied(images), atol=1e-4, rtol=1e-4)
    assert all(p.requires_grad for p in mlp.parameters())


def test_tied_units_have_the_same_weights_in_shifted_windows():
    mlp = untied(models.build("mnist-mlp", generator=generator(0, "test", 0), tied=True), SHAPE["mnist-mlp"])
    maps = mlp.get_parameter("1.weight").detach().view(25, 10, 10, 28, 28)
    # outputs for unit vectors minus the bias, which may round differently
    torch.testing.assert_close(maps[:, 5, 5], maps[:, 4, 3].roll((3, 6), dims=(1, 2)), atol=1e-6, rtol=0)
    rows, columns = (maps[:, 5, 5].abs().sum(0) > 1e-5).nonzero().T
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (12, 18, 12, 18)


def test_untying_uses_no_random_numbers():
    tied = models.build("mnist-mlp", generator=generator(0, "test", 0), tied=True)
    before = torch.get_rng_state()
    untied(tied, SHAPE["mnist-mlp"])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("epochs", "last"), [(4, 2), (1, 0), (5, 2)])
def test_weights_are_tied_for_a_fraction_of_the_epochs_and_the_result_is_an_mlp(epochs, last, digits):
    images, labels = digits[0][:40], digits[1][:40]
    config = replace(CONFIG, epochs=epochs, learning_rate=0.01, tied=0.5)
    tied = []
    state = train(config, (images, labels), network="mnist-mlp", after_step=lambda state: tied.append(state.tied))
    assert tied == [True] * 2 * last + [False] * 2 * (epochs - last)
    assert isinstance(next(iter(state.result.children())), nn.Flatten)


def test_only_mlps_can_be_tied(random):
    with pytest.raises(apac.InputError, match="no network 'mnist-cnn'; choose one of mnist-mlp, cifar10-mlp"):
        models.build("mnist-cnn", generator=random, tied=True)
