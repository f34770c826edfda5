"""The device that trains. No accelerator is needed: the moves are observed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import apac
from apac.training.device import choose_device
from small_training import CONFIG, train


@pytest.mark.parametrize("found", ["cuda", "mps"])
def test_the_default_is_an_accelerator_that_torch_finds(monkeypatch, found):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device(found))
    assert choose_device().type == found
    assert choose_device("cpu").type == "cpu"


def test_without_an_accelerator_the_cpu_trains(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    assert choose_device() == torch.device("cpu")


@pytest.mark.parametrize("name", ["meta", "abacus", "xla", "cpu:x", "cuda:99"])
def test_a_device_that_is_not_available_is_rejected_in_one_sentence(name):
    pair = torch.rand(8, 1, 28, 28), torch.arange(8) % 2
    with pytest.raises(
        apac.InputError, match=f"the device '{name}' is not available: .*; choose another one"
    ) as caught:
        apac.train("mnist-cnn", pair, apac.Flip(), device=name)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250


def test_every_batch_and_the_held_out_images_are_moved_to_the_device(digits, monkeypatch):
    moved: list[tuple[int, ...]] = []
    to, device = Tensor.to, torch.device("cpu")

    def spy(tensor: Tensor, *arguments: object, **options: object) -> Tensor:
        if arguments and arguments[0] is device:  # deformations move their constants to a device that is equal to it
            moved.append(tuple(tensor.shape))
        return to(tensor, *arguments, **options)  # type: ignore[call-overload, no-any-return]

    part, held_out = (digits[0][:40], digits[1][:40]), (digits[0][50:53], digits[1][50:53])
    monkeypatch.setattr(Tensor, "to", spy)
    train(replace(CONFIG, epochs=1), part, held_out=held_out, device=device)
    assert moved == [(20, 1, 28, 28), (20,)] * 2 + [(3, 1, 28, 28)]


def test_the_network_of_a_run_is_on_the_cpu_in_evaluation_mode():
    pair = torch.rand(8, 1, 28, 28), torch.arange(8) % 2
    run = apac.train("mnist-cnn", pair, apac.Flip(), config=replace(CONFIG, epochs=1), device="cpu")
    assert {p.device.type for p in run.network.parameters()} == {"cpu"}
    assert not run.network.training


def test_a_network_that_was_moved_is_standardized_on_its_device():
    pair = torch.randint(256, (8, 3, 16, 16), dtype=torch.uint8), torch.arange(8) % 2
    run = apac.train(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 2)), pair, apac.Flip(), config=CONFIG)
    network = run.normalization.in_front_of(run.network.to("meta"))
    assert {tensor.device.type for tensor in network.state_dict().values()} == {"meta"}
