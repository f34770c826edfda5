"""The network modeled on airbench."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.decomposition import PCA
from torch.nn import functional

import apac
from apac import models
from apac.models.cifar10_modern import (
    NOISE,
    DiracConv2d,
    FastBias,
    PatchWhitening,
    SlowLinear,
    cifar10_modern,
)


def correlated_images(n: int, random: torch.Generator) -> torch.Tensor:
    """Return smooth images (n, 3, 32, 32): neighbors and channels are correlated, as in photos."""
    noise = torch.randn(n, 3, 34, 34, generator=random)
    return functional.avg_pool2d(noise + noise.mean(1, keepdim=True), 3, stride=1)


def test_the_first_layer_whitens_patches_as_scikit_learn_does(random):
    images = correlated_images(50, random)
    layer = PatchWhitening(3)
    layer.fit(images)
    patches = functional.unfold(images, 2).transpose(1, 2).flatten(0, 1).numpy().astype(np.float64)
    pca = PCA().fit(patches)
    expected = pca.components_ / np.sqrt(pca.explained_variance_ + NOISE)[:, None]
    filters = layer.weight.flatten(1).numpy()
    # Components are unique up to their sign. float32 filters of up to 1 / sqrt(NOISE).
    signs = np.sign((filters[:12] * expected).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(filters[:12] * signs, expected, atol=1e-3)
    np.testing.assert_array_equal(filters[12:], -filters[:12])


def test_its_size_is_that_of_airbench():
    with torch.device("meta"):
        network = cifar10_modern()
    trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
    assert 1.9e6 < trained < 2.1e6
    assert network.eval()(torch.empty(2, 3, 32, 32, device="meta")).shape == (2, 10)


def test_an_untrained_convolution_passes_its_inputs_on(random):
    network = models.build("cifar10-modern", generator=random)
    convolutions = [layer for layer in network if isinstance(layer, DiracConv2d)]
    assert [layer.out_channels for layer in convolutions] == [64, 64, 256, 256, 256, 256]
    for layer in convolutions:
        x = torch.randn(2, layer.in_channels, 8, 8, generator=random)
        y = layer(x)
        torch.testing.assert_close(y[:, : layer.in_channels], x)
        assert layer.weight[layer.in_channels :].count_nonzero(dim=(1, 2, 3)).gt(1).all()  # the others are random


def change_of_a_step(layer: torch.nn.Module, parameter: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return by how much a step of gradient descent changes what the layer returns, for the same gradient of that."""
    before = layer(x)
    before.backward(torch.ones_like(before))
    assert parameter.grad is not None
    with torch.no_grad():
        parameter.sub_(1e-3 * parameter.grad)
        return layer(x) - before


def test_a_step_of_gradient_descent_changes_a_fast_bias_by_169_times_as_much(random):
    x = torch.randn(2, 3, 4, 4, generator=random)
    fast, ordinary = FastBias(3), torch.nn.Conv2d(3, 3, 1)
    torch.nn.init.dirac_(ordinary.weight)
    torch.nn.init.zeros_(ordinary.bias)
    changes = [change_of_a_step(layer, layer.bias, x) for layer in (fast, ordinary)]
    torch.testing.assert_close(changes[0], 169 * changes[1], atol=1e-4, rtol=1e-4)  # rounding of values near 1


def test_a_step_of_gradient_descent_changes_the_last_layer_by_a_28th(random):
    x = torch.randn(5, 8, generator=random)
    changes = [change_of_a_step(layer, layer.weight, x) for layer in (SlowLinear(8, 3), torch.nn.Linear(8, 3))]
    torch.testing.assert_close(changes[0], (3 / 16) ** 2 * changes[1], atol=1e-6, rtol=1e-3)


def test_training_fits_the_first_layer_and_keeps_it(tmp_path, random):
    pixels = (correlated_images(40, random) * 40 + 128).clamp(0, 255).to(torch.uint8)
    labels = torch.arange(40) % 2
    config = apac.TrainConfig(epochs=1, batch_size=20, label_smoothing=0.2, validation_fraction=0)
    run = apac.train("cifar10-modern", (pixels, labels), apac.Flip(), config=config, out=tmp_path / "run")
    (layer,), fitted = models.fitted_layers(run.network), PatchWhitening(3)
    # Training images are in the order of the split, which changes rounding only.
    fitted.fit(run.normalization.standardize(pixels / 255))
    own, expected = layer.weight, fitted.weight
    signs = (own * expected).sum(dim=(1, 2, 3), keepdim=True).sign()
    torch.testing.assert_close(own * signs, expected, atol=1e-3, rtol=1e-3)
    assert run.config.optimizer == "muon"
    images = run.normalize(pixels)
    rule = apac.FixedPasses(2)
    first, loaded = run.classifier(rule).decide(images), apac.load(tmp_path / "run").classifier(rule).decide(images)
    torch.testing.assert_close(first.log_scores, loaded.log_scores)


def test_smoothed_labels_bound_the_confidence(random):
    """With labels smoothed by 1/2, the best probability of the true one of two classes is 3/4."""
    images, labels = torch.eye(2).repeat(20, 1).view(40, 2, 1, 1), torch.arange(40) % 2
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 2))
    config = apac.TrainConfig(epochs=300, batch_size=40, learning_rate=1, label_smoothing=0.5, validation_fraction=0)
    run = apac.train(network, (images, labels), apac.Compose(), config=config)
    with torch.no_grad():
        probabilities = run.network(images[:2]).softmax(dim=1).diagonal()
    torch.testing.assert_close(probabilities, torch.full((2,), 0.75), atol=0.01, rtol=0)
