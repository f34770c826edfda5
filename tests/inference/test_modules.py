"""Evaluation mode reaches the modules behind a callable, and nothing else changes."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from apac.inference.engine import evaluating, operations
from apac.inference.modules import modules_of

GLOBAL = nn.Dropout()


class Wrapper:
    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def __call__(self, images: Tensor) -> Tensor:
        return self.network(images)

    def logits(self, images: Tensor) -> Tensor:
        return self.network(images)


def call(network: nn.Module, images: Tensor) -> Tensor:
    return network(images)


def closure(network: nn.Module) -> Callable[[Tensor], Tensor]:
    def run(images: Tensor) -> Tensor:
        return network(images)

    return run


def decorated(network: nn.Module) -> Callable[..., Tensor]:
    return functools.wraps(closure(network))(lambda *arguments: torch.zeros(1))


@pytest.mark.parametrize(
    "make",
    [
        lambda network: network,
        lambda network: network.forward,
        lambda network: lambda images: network(images),
        closure,
        decorated,
        Wrapper,
        lambda network: Wrapper(network).logits,
        lambda network: functools.partial(call, network),
        lambda network: functools.partial(closure(network)),
    ],
    ids=[
        "module",
        "method",
        "lambda",
        "closure",
        "decorated",
        "object",
        "method of an object",
        "partial",
        "of closure",
    ],
)
def test_the_modules_of_a_callable_are_in_evaluation_mode_during_the_block(make):
    network = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    network[0].eval()
    with evaluating(make(network)):
        assert not any(part.training for part in network.modules())
        assert not torch.is_grad_enabled()
    assert [part.training for part in network.modules()] == [True, False, True]
    assert torch.is_grad_enabled()


def test_a_global_module_that_a_function_uses_is_found():
    assert modules_of(lambda images: GLOBAL(images)) == [GLOBAL]


def test_a_callable_without_modules_has_none():
    for network in (torch.relu, torch.nn.functional.relu, lambda images: images, functools.partial(torch.flatten)):
        assert modules_of(network) == []


def test_modes_are_restored_after_an_error():
    network = nn.Dropout()
    with pytest.raises(KeyError), evaluating(lambda images: network(images)):
        raise KeyError
    assert network.training


def test_no_global_module_hook_exists_while_a_network_runs():
    hooks: list[int] = []

    class Watching(nn.Linear):
        def forward(self, images: Tensor) -> Tensor:
            hooks.append(len(torch_module._global_forward_pre_hooks) + len(torch_module._global_forward_hooks))
            return super().forward(images)

    network = Watching(3, 2)
    with evaluating(lambda images: network(images)):
        network(torch.ones(1, 3))
    assert operations(network, torch.ones(1, 3)) == 2 * 3 * 2
    assert hooks == [0, 0]


def test_operations_are_counted_for_the_calling_thread_alone():
    network = nn.Linear(3, 2)
    during = threading.Barrier(2)

    def elsewhere() -> None:
        during.wait(timeout=30)
        nn.Linear(100, 100)(torch.ones(1, 100))
        during.wait(timeout=30)

    def together(images: Tensor) -> Tensor:
        during.wait(timeout=30)
        during.wait(timeout=30)
        return images

    class Meeting(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return together(images)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    assert operations(nn.Sequential(Meeting(), network), torch.ones(1, 3)) == 2 * 3 * 2
    thread.join()
