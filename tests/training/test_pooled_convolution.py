"""A convolution, max pooling and ReLU as one operation: the gradients are torch's."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

import apac
from apac.deform.cpu import torch_path
from apac.inference.workers import torch_threads
from apac.models.cifar10_cnn import cifar10_cnn
from apac.models.mnist_cnn import mnist_cnn
from apac.randomness import generator, seeded_torch
from apac.training import pooled_convolution
from apac.training.pooled_convolution import forward


def layers(inputs: int, outputs: int, size: int, *, stride: int = 1, bias: bool = True) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, size, stride=stride, bias=bias)
    return nn.Sequential(convolution, nn.MaxPool2d(2), nn.ReLU())


NETWORKS: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, int, int]]] = {
    "mnist-cnn": (mnist_cnn, (1, 28, 28)),
    "cifar10-cnn": (cifar10_cnn, (3, 32, 32)),
    "no bias": (lambda: layers(3, 5, 3, bias=False), (3, 9, 9)),
    "wide images": (lambda: layers(32, 7, 2), (32, 5, 12)),
    "steps of two pixels": (lambda: layers(40, 6, 3, stride=2), (40, 11, 12)),
    "windows with padding": (lambda: nn.Sequential(nn.Conv2d(32, 6, 3), nn.MaxPool2d(3, 3, 1), nn.ReLU()), (32, 8, 8)),
    "windows beyond the edge": (
        lambda: nn.Sequential(nn.Conv2d(32, 6, 3), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU()),
        (32, 9, 7),
    ),
    "rectangles": (
        lambda: nn.Sequential(nn.Conv2d(32, 6, (1, 3)), nn.MaxPool2d((1, 2), (1, 2)), nn.ReLU()),
        (32, 6, 8),
    ),
    "two in a row": (lambda: nn.Sequential(*layers(1, 33, 3), *layers(33, 5, 3), nn.Flatten()), (1, 14, 14)),
}


def build(name: str) -> tuple[nn.Sequential, Tensor]:
    """Return a network and images, more than are convolved together, and not a multiple of any part."""
    make, shape = NETWORKS[name]
    with seeded_torch(0, "test", 0, torch.device("cpu")):
        return make(), torch.randn(131, *shape)


def gradients(network: nn.Module, images: Tensor, *, threads: int = 1) -> list[Tensor]:
    network.zero_grad()
    images = images.detach().requires_grad_(images.requires_grad)
    with torch_threads(threads):
        outputs = forward(network, images)
        outputs.backward(torch.randn(outputs.shape, generator=generator(0, "test", 1)))
    own = [] if images.grad is None else [images.grad]
    return [outputs.detach(), *own, *(p.grad.clone() for p in network.parameters() if p.grad is not None)]


def in_format(network: nn.Sequential, memory_format: torch.memory_format) -> nn.Sequential:
    return copy.deepcopy(network).to(memory_format=memory_format)  # type: ignore[call-overload, no-any-return]


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes of the weights of layers that were computed as one operation."""
    shapes: list[torch.Size] = []
    apply = pooled_convolution._PooledConvolution.apply
    record = lambda *a: shapes.append(a[1].shape) or apply(*a)  # noqa: E731
    monkeypatch.setattr(pooled_convolution._PooledConvolution, "apply", record)
    return shapes


def assert_torchs(network: nn.Sequential, images: Tensor, got: list[Tensor]) -> None:
    with torch_path():
        expected = gradients(network, images)
    for ours, theirs in zip(got, expected, strict=True):
        # sums of up to 131 · 900 float32 terms in another order
        assert float((ours - theirs).abs().max()) <= 2e-5 * float(theirs.abs().max())


def convolutions(network: nn.Sequential) -> list[torch.Size]:
    return [layer.weight.shape for layer in network if isinstance(layer, nn.Conv2d)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_the_gradients_are_those_of_torch(name, memory_format, threads, used):
    network, images = build(name)
    network = in_format(network, memory_format)
    images = images.contiguous(memory_format=memory_format)
    got = gradients(network, images, threads=threads)
    assert used == convolutions(network)
    assert_torchs(network, images, got)
    assert used == convolutions(network)  # not in torch_path


@pytest.mark.parametrize("name", [name for name, (_, shape) in NETWORKS.items() if shape[0] >= 32])
def test_images_that_need_a_gradient_get_torchs(name, used):
    network, images = build(name)
    got = gradients(network, images.requires_grad_())
    assert used == convolutions(network)
    assert got[1].shape == images.shape
    assert_torchs(network, images, got)


def test_of_equal_values_in_a_window_the_one_that_torch_chooses_gets_the_gradient(used):
    network, images = layers(32, 4, 2), torch.ones(3, 32, 5, 5).requires_grad_()
    with torch.no_grad():
        nn.init.constant_(next(network.parameters()), 1.0)  # all outputs are equal and positive
    got = gradients(network, images)
    assert used
    assert_torchs(network, images, got)


LARGE = """
import resource, torch
from torch import nn
from apac.training.pooled_convolution import forward
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # lists of all outputs for every position take 27 GB
torch.set_num_threads(1)
layers = nn.Conv2d(3, 32, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.ReLU()
forward(nn.Sequential(*layers), torch.rand(1, 3, 224, 224)).sum().backward()
print(all(layer.weight.grad.any() for layer in layers[::3]))
"""


def test_the_memory_for_large_images_does_not_grow_with_the_square_of_their_pixels():
    assert subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True).stdout == "True\n"


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Conv2d(32, 4, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Conv2d(32, 4, 3, dilation=2), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Conv2d(32, 4, 3, groups=2), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Conv2d(32, 4, 3), nn.MaxPool2d(3, 1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(32, 4, 3), nn.MaxPool2d(2, 2, 1, dilation=3), nn.ReLU()),
        nn.Sequential(nn.Conv2d(32, 4, 3), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(32, 4, 3), nn.MaxPool2d(2), nn.GELU()),
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(32, 4, 3)), nn.MaxPool2d(2), nn.ReLU()),
        layers(8, 4, 3).append(nn.Identity()),
        layers(32, 4, 3).double(),
        layers(32, 4, 3).requires_grad_(False),
        layers(32, 4, 3)[:2],
    ],
    ids=[
        "padding",
        "dilation",
        "groups",
        "overlap",
        "dilated pooling",
        "order",
        "GELU",
        "parametrized",
        "rows of 24 values",
        "float64",
        "frozen",
        "no ReLU",
    ],
)
def test_other_layers_are_left_to_torch(network, used):
    images = torch.randn(2, 8 if convolutions(network)[:1] == [(4, 8, 3, 3)] else 32, 9, 9)
    images = images.to(next(network.parameters()).dtype)
    torch.testing.assert_close(forward(network, images), network(images), rtol=0, atol=0)
    assert not used


@pytest.mark.parametrize("context", [torch.no_grad, lambda: torch.autocast("cpu", dtype=torch.bfloat16)])
def test_without_gradients_and_in_autocast_torch_computes(context, used, monkeypatch):
    monkeypatch.setattr(nn.Conv2d, "forward", lambda layer, x: x[:, :4])  # bfloat16 does not run on every processor
    with context():
        forward(layers(32, 4, 3), torch.randn(2, 32, 9, 9))
    assert not used


def test_images_that_need_a_gradient_are_left_to_torch_if_the_window_is_short(used):
    images = torch.randn(2, 3, 9, 9).requires_grad_()
    forward(layers(3, 5, 3), images).sum().backward()
    assert not used
    assert images.grad is not None


@pytest.mark.parametrize("layer", [0, 1, 2, None])
@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward"])
def test_hooks_are_called(kind, layer, used):
    network, calls = layers(32, 4, 3), []
    hooked = network if layer is None else network[layer]
    getattr(hooked, f"register_{kind}_hook")(lambda *call: calls.append(call))
    forward(network, torch.randn(2, 32, 9, 9).requires_grad_()).sum().backward()
    assert len(calls) == 1
    assert not used


def test_hooks_of_all_modules_are_called(used):
    calls: list[object] = []
    handle = nn.modules.module.register_module_forward_hook(lambda *call: calls.append(call))
    try:
        forward(layers(32, 4, 3), torch.randn(2, 32, 9, 9))
    finally:
        handle.remove()
    assert len(calls) == 4
    assert not used


def test_a_layer_whose_forward_was_replaced_is_called(used):
    network = layers(32, 4, 3)
    network[1].forward = lambda x: x
    assert forward(network, torch.randn(2, 32, 9, 9)).shape == (2, 4, 7, 7)
    assert not used


def test_an_empty_batch_has_gradients_of_zero():
    network = layers(32, 4, 3)
    forward(network, torch.zeros(0, 32, 9, 9)).sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in network.parameters())


def test_training_gives_the_same_network_but_for_rounding(used):
    random = generator(0, "test", 0)
    images, labels = torch.rand(40, 1, 28, 28, generator=random), torch.arange(40) % 4
    config = apac.TrainConfig(epochs=2, batch_size=20, validation_fraction=0.0)
    results = []
    for path in (nullcontext, torch_path):
        with path():
            run = apac.train("mnist-cnn", (images, labels), apac.presets.mnist(), config=config)
        results.append(torch.cat([p.detach().flatten() for p in run.network.parameters()]))
    assert len(used) == 2 * 4  # two layers in four steps
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=0)
