"""bfloat16: taken only when asked for, only where a process survives it, and right to its rounding."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import apac
from apac.errors import InputError, TrainingError
from apac.models.cifar10_modern import FastBias
from apac.runs.folder import is_complete
from apac.training import precision

CPU = torch.device("cpu")
needs_bfloat16 = pytest.mark.skipif("not precision.has_bfloat16()", reason="the processor has no bfloat16")


@pytest.fixture
def trial(monkeypatch):
    """Replace the program that tries the processor's instructions."""

    def replace(program: str) -> None:
        monkeypatch.setattr(precision, "TRIAL", program)
        precision.has_bfloat16.cache_clear()

    yield replace
    precision.has_bfloat16.cache_clear()


@pytest.fixture
def pair(random) -> tuple[Tensor, Tensor]:
    """Images with labels; those of one class are brighter in one half."""
    images, labels = torch.rand(200, 3, 8, 8, generator=random), torch.arange(200) % 2
    images[labels == 1, :, :4] += 1
    return images, labels


def test_a_processor_that_kills_the_trial_is_refused_before_anything_is_written(trial, pair, tmp_path):
    trial("import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    config = apac.TrainConfig(epochs=1, precision="bfloat16")
    with pytest.raises(InputError, match='no working instructions for bfloat16; use precision="float32"'):
        apac.train(network, pair, apac.Flip(), config=config, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_float32_and_other_devices_need_no_trial(trial):
    trial("raise SystemExit(3)")
    precision.check_precision("float32", CPU)
    precision.check_precision("bfloat16", torch.device("cuda"))
    with pytest.raises(InputError, match="meta of this machine has no working instructions for bfloat16"):
        precision.check_precision("bfloat16", torch.device("meta"))


def test_a_trial_that_cannot_run_is_no_answer(trial):
    trial("import torch; torch.ops.mkldnn.no_such_operator")
    with pytest.raises(
        TrainingError, match=r'bfloat16 could not be tried: AttributeError: .*; use precision="float32"'
    ):
        precision.check_precision("bfloat16", CPU)


def test_the_trial_itself_ends_with_an_answer():
    assert precision.has_bfloat16() in (True, False)


def test_a_module_in_the_current_folder_does_not_disturb_the_trial(trial, tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    trial("import json")
    assert precision.has_bfloat16()


@needs_bfloat16
def test_the_network_computes_in_the_precision_of_the_configuration(pair, tmp_path):
    seen: dict[str, set[torch.dtype]] = {}

    class Recorder(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                seen.setdefault(self.name, set()).add(x.dtype)
            return x

    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), FastBias(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)
    losses = {}
    for name in ("float32", "bfloat16"):
        network = nn.Sequential(*copy.deepcopy(layers[:-1]), Recorder(name), copy.deepcopy(layers[-1]))
        config = apac.TrainConfig(epochs=2, batch_size=20, learning_rate=0.02, optimizer="muon", precision=name)
        run = apac.train(network, pair, apac.Flip(), config=config, out=tmp_path / name)
        assert is_complete(tmp_path / name)
        assert {weight.dtype for weight in run.network.parameters()} == {torch.float32}
        losses[name] = [epoch.loss for epoch in run.history]
    assert seen == {"float32": {torch.float32}, "bfloat16": {torch.bfloat16}}
    assert losses["float32"] != losses["bfloat16"]
    # Products are rounded to 8 bits, one part in 256; 20 steps amplify that a little.
    assert losses["float32"] == pytest.approx(losses["bfloat16"], rel=0.05)


@needs_bfloat16
def test_a_network_that_does_not_compute_in_bfloat16_is_refused_before_training(pair, tmp_path):
    class Mixed(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.zeros(len(x), 2).index_add_(0, torch.arange(len(x)), super().forward(x.flatten(1)))

    config = apac.TrainConfig(epochs=1, precision="bfloat16")
    with pytest.raises(
        InputError,
        match=r"images of shape \(N, 3, 8, 8\) in bfloat16 \(precision=.float32. is the default\)",
    ):
        apac.train(Mixed(192, 2), pair, apac.Flip(), config=config, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
