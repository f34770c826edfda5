"""The residual network for images of any size."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import apac
from apac import models
from apac.models.resnet import Block, resnet, stem_strides
from apac.randomness import generator


def build(image_shape: tuple[int, int, int], classes: int = 5, seed: int = 0) -> nn.Sequential:
    return models.build("resnet", generator=generator(seed, "test", 0), image_shape=image_shape, classes=classes)


def multiplications(image_shape: tuple[int, int, int]) -> int:
    """Return the number of multiplications of all convolutions for one image. Nothing is computed."""
    total = 0

    def count(layer: nn.Module, inputs: object, output: torch.Tensor) -> None:
        nonlocal total
        assert isinstance(layer, nn.Conv2d)
        total += layer.weight[0].numel() * output.numel()

    with torch.device("meta"):
        network = resnet(image_shape, 10)
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d):
                layer.register_forward_hook(count)
        assert network.eval()(torch.empty(1, *image_shape)).shape == (1, 10)
    return total


@pytest.mark.parametrize("image_shape", [(1, 16, 16), (3, 33, 47), (2, 64, 17), (3, 96, 96)])
def test_it_takes_any_size_and_number_of_channels(image_shape, random):
    images = torch.rand(3, *image_shape, generator=random)
    network = build(image_shape)
    assert network.train()(images).shape == network.eval()(images).shape == (3, 5)


@pytest.mark.parametrize("side", [16, 28, 96, 224, 384])
def test_the_cost_of_an_image_is_bounded(side):
    # The stages work on maps of at most 28 × 28, for images of 32 × 32 of 16 × 16: (28 / 16)² = 3.1; and the stem.
    assert multiplications((3, side, side)) < 5 * multiplications((3, 32, 32))


def test_the_stem_halves_until_the_map_has_at_most_28_pixels_a_side():
    assert [stem_strides(side) for side in (16, 28, 29, 56)] == [[1], [1], [1, 2], [1, 2]]
    assert [stem_strides(side) for side in (57, 112, 113, 224, 384)] == [[2] * n for n in (2, 2, 3, 3, 4)]


def test_it_has_a_few_million_parameters_at_most():
    for side in (16, 32, 384):
        assert sum(p.numel() for p in resnet((3, side, side), 1000).parameters()) < 3e6


def test_every_block_starts_as_the_identity_on_its_shortcut(random):
    blocks = [layer for layer in build((3, 32, 32)).eval() if isinstance(layer, Block)]
    assert len(blocks) == 4
    for block in blocks:
        first = block.residual[0]
        assert isinstance(first, nn.Conv2d)
        inputs = first.in_channels
        x = torch.rand(2, inputs, 9, 9, generator=random)
        assert torch.equal(block(x), block.shortcut(x).relu())


def test_the_initial_weights_depend_only_on_the_generator():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, again, other = (build((3, 20, 20), seed=seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert not torch.equal(first["0.weight"], other["0.weight"])
    for name, tensor in first.items():
        if tensor.ndim == 4:
            spread = tensor.std().item() * tensor[0].numel() ** 0.5
            assert spread == pytest.approx(2**0.5, abs=5 / tensor.numel() ** 0.5), name
        assert torch.isfinite(tensor.float()).all(), name


def test_it_learns_and_its_run_decides_again(tmp_path, random):
    labels = torch.arange(40) % 2
    images = torch.randint(100, (40, 3, 16, 16), dtype=torch.uint8, generator=random)
    images[labels == 1, 0] += 100
    config = apac.TrainConfig(epochs=4, batch_size=20)
    run = apac.train("resnet", (images, labels), apac.Flip(), config=config, out=tmp_path / "run")
    assert (run.config.optimizer, run.config.schedule) == ("muon", "cosine")
    decisions = [r.classifier(apac.FixedPasses(2)).decide(r.normalize(images)) for r in (run, apac.load(run.folder))]
    assert torch.equal(decisions[0].labels, labels)
    assert torch.equal(decisions[1].log_scores, decisions[0].log_scores)
