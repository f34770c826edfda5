"""apac train."""

from __future__ import annotations

import csv
import re
import shlex
import signal
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch

import apac
from apac.cli.signals import stop_on_signal
from apac.runs.checkpointer import Checkpointer
from apac.training.loop import TrainingState
from commands import call, refusal, succeed
from image_folders import COLORS, DEFAULT, gallery, paint

SHORT = ["--epochs", "1", "--batch-size", "40"]


def test_train_prints_the_outcome_and_the_next_command(tmp_path, few):
    result = succeed("train", "--out", tmp_path / "run", *SHORT, "--plain", "--network", "mnist-cnn", "--seed", 3)
    assert re.search(r"mnist-cnn, 1 epoch in \d+ s, loss \d", result.stdout)
    assert "next: apac evaluate" in result.stdout
    run = apac.load(tmp_path / "run")
    assert (run.deformation, run.config.seed, run.config.batch_size) == (apac.Compose(), 3, 40)


def test_every_option_reaches_the_configuration(tmp_path, few, monkeypatch):
    # The processor may not have bfloat16: the steps are taken in float32.
    monkeypatch.setattr("apac.training.precision.has_bfloat16", lambda: True)
    for module in ("training.loop", "runs.network_check"):
        monkeypatch.setattr(f"apac.{module}.autocast", lambda precision, device: nullcontext())
    options = {
        "epochs": 2,
        "batch_size": 400,
        "learning_rate": 0.01,
        "schedule": "cosine",
        "warmup": 0.1,
        "optimizer": "muon",
        "tied": 0.5,
        "momentum": 0.8,
        "weight_decay": 1e-5,
        "label_smoothing": 0.2,
        "ema_decay": 0.5,
        "precision": "bfloat16",
        "validation_fraction": 0.2,
        "normalization": "standardization",
        "seed": 7,
        "on_unreadable": "skip",
    }
    flags = [item for name, value in options.items() for item in (f"--{name.replace('_', '-')}", value)]
    succeed("train", "--network", "mnist-mlp", *flags, "--no-replacement", "--out", tmp_path / "run")
    others = {"replacement": False, "size": None, "fit": "crop", "weights": None, "freeze": False}
    assert apac.load(tmp_path / "run").config.to_json() == options | others


def test_without_a_terminal_progress_is_printed_as_lines(tmp_path, few):
    result = succeed("train", "--out", tmp_path / "run", *SHORT)
    note = r"training: 100 %, epoch 1/1, learning rate 0.062, loss \d.*, validation error \d+\.\d+%"
    assert re.search(note, result.stderr)


def test_a_network_by_import_path_is_trained_and_resumed_from_the_current_folder(tmp_path, few, monkeypatch):
    (tmp_path / "folder_networks.py").write_text(
        "from torch import nn\n\n\ndef build(image_shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(784, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = succeed("train", "--network", "folder_networks:build", "--out", "run", *SHORT)
    assert result.stdout.splitlines()[-1] == "next: apac --import folder_networks evaluate run"
    assert apac.load("run").network_name == "folder_networks:build"
    monkeypatch.delitem(sys.modules, "folder_networks")
    sentence = refusal("train", "--resume", "--out", "run")
    assert "start the command with apac --import folder_networks" in sentence
    succeed("train", "--resume", "--network", "folder_networks:build", "--out", "run")
    monkeypatch.delitem(sys.modules, "folder_networks")
    result = succeed("--import", "folder_networks", "train", "--resume", "--out", "run")
    assert result.stdout.splitlines()[-1] == "next: apac --import folder_networks evaluate run"
    succeed(*shlex.split(result.stdout.splitlines()[-1])[2:], "--passes", 1)
    monkeypatch.delitem(sys.modules, "folder_networks")


OWN = """
from dataclasses import dataclass
import torch
import apac
from torch import nn


def small(image_shape, classes):
    channels, height, width = image_shape
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, classes))


@dataclass(frozen=True)
class Brightness(apac.Deformation):
    std: float = 0.1

    def sample(self, n, image_shape, *, generator):
        return self.std * torch.randn(n, 1, 1, 1, generator=generator)

    def apply(self, images, parameters):
        return images + parameters


bright = Brightness(0.3)
five = 5


def failing(*arguments):
    raise ZeroDivisionError("oops")


class Raises(nn.Linear):
    def forward(self, images):
        raise KeyError("gone")


def raising(image_shape, classes):
    return Raises(2, 2)
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A module of one's own and a folder of photos, in the current folder."""
    (tmp_path / "own_parts.py").write_text(OWN)
    (tmp_path / "unparsable.py").write_text("def build(:\n")
    gallery(tmp_path / "photos", 5)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("own_parts", None)


def test_a_network_of_ones_own_is_trained_on_a_folder_and_classifies_files(own_module):
    succeed("train", "--data", "photos", "--network", "own_parts:small", "--out", "run", *SHORT)
    assert apac.load("run").deformation == DEFAULT
    del sys.modules["own_parts"]
    result = succeed("--import", "own_parts", "classify", "run", "photos/sky/00.png", "--passes", 2)
    assert "photos/sky/00.png" in result.stdout


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mnist", "Compose(Homography("),
        ("own_parts:bright", "Brightness(std=0.3)"),
        ("own_parts:Brightness", "Brightness(std=0.1)"),
    ],
)
def test_a_deformation_is_chosen_by_name_or_by_import_path(own_module, name, expected):
    network = ["--network", "own_parts:small"]
    succeed("train", "--data", "photos", *network, "--deformation", name, "--out", "run", *SHORT)
    assert repr(apac.load("run").deformation).startswith(expected)


def test_a_deformation_of_ones_own_appears_in_the_hints_and_is_resumed(own_module):
    options = ["--data", "photos", "--deformation", "own_parts:bright", "--epochs", 1, "--batch-size", 5]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpointer, "__call__", stop_at_first_step)
        result = call("train", *options, "--out", "run")
    command = "apac --import own_parts train --resume --out run"
    assert result.stderr.strip().endswith(f"resume with: {command}")
    del sys.modules["own_parts"]
    succeed(*shlex.split(command)[1:])
    assert repr(apac.load("run").deformation) == "Brightness(std=0.3)"


def stop_at_first_step(self: Checkpointer, state: TrainingState) -> None:
    self.save(state)
    raise apac.errors.Interrupted("stopped in epoch 1 of 1; continue with resume=True.")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--deformation", "emnist"], "there is no deformation 'emnist'; choose one of mnist, cifar10"),
        (["--deformation", "own_parts:blur"], "the module own_parts has no deformation 'blur'."),
        (["--deformation", "own_parts:five"], "must be an apac.Deformation or a function that returns one, got 5."),
        (["--deformation", "own_parts:failing"], "apac: own_parts:failing failed: ZeroDivisionError: oops."),
        (["--deformation", "mnist", "--plain"], "--plain trains without deformation; choose it or --deformation."),
        (["--network", "own_parts:failing"], "apac: own_parts:failing failed: ZeroDivisionError: oops."),
        (["--network", "own_parts:Brightness"], "apac: own_parts:Brightness failed: TypeError: "),
        (["--network", "unparsable:build"], "apac: unparsable:build failed: SyntaxError: "),
        (["--network", "own_parts:raising"], "does not accept images of shape (N, 3, 38, 38): KeyError: 'gone'."),
    ],
)
def test_errors_in_modules_of_ones_own_end_in_one_sentence(own_module, options, sentence):
    result = call("train", "--data", "photos", *options, "--out", "run")
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("apac: ") and sentence in last


def test_the_command_trains_on_a_folder_evaluates_it_and_classifies_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = gallery(tmp_path / "photos", 12)
    short = ["--epochs", 12, "--batch-size", 8, "--schedule", "cosine"]
    succeed("train", "--data", "photos", "--network", "cifar10-cnn", "--out", "run", *short)
    run = apac.load("run")
    assert run.classes == ("apple", "leaf", "sky") and run.image_shape == (3, 32, 32)
    assert (run.network_name, run.data, run.deformation) == ("cifar10-cnn", str(root), DEFAULT)
    assert "test images" in succeed("evaluate", "run", "--passes", "1,8").stdout
    files = [paint(tmp_path / f"new {i}.jpg", COLORS[name], (90, 50), seed=99) for i, name in enumerate(COLORS)]
    succeed("classify", "run", *files, "--csv", "out.csv", "--passes", 16)
    with (tmp_path / "out.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert [row["label"] for row in rows] == list(COLORS)
    assert [row["image"] for row in rows] == [str(path) for path in files]
    assert {row["passes"] for row in rows} == {"16"} and all(float(row["margin"]) > 0 for row in rows)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_requests_a_stop_and_the_second_stops_immediately(number):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), stop_on_signal() as should_stop:
        assert not should_stop()
        signal.raise_signal(number)
        assert should_stop()
        signal.raise_signal(number)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_signal_before_the_first_step_stops_immediately():
    with pytest.raises(KeyboardInterrupt), stop_on_signal():
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_saves_a_checkpoint_and_prints_how_to_resume(tmp_path, few):
    """With a real signal, sent to the test process after training has started."""
    out = tmp_path / "a run"

    original = Checkpointer.__call__

    def interrupted(self: Checkpointer, state: TrainingState) -> None:
        if state.step == 3:
            signal.raise_signal(signal.SIGINT)
        original(self, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpointer, "__call__", lambda self, state: interrupted(self, state))
        result = call("train", "--out", out, "--epochs", 4, "--batch-size", 40)
    assert result.exit_code == 130
    assert "next:" not in result.stdout
    last = result.stderr.strip().splitlines()[-1]
    assert last == (
        f"apac: stopped in epoch 1 of 4, and a checkpoint is saved; resume with: "
        f"apac train --resume --out {shlex.quote(str(out))}"
    )
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint.safetensors", "run.json"]
    assert "is not finished" in refusal("evaluate", out)
    succeed("train", "--resume", "--out", out)
    assert len(apac.load(out).history) == 4


def test_a_killed_training_resumes_to_the_same_weights(tmp_path, few):
    """Killed by SIGKILL, which nothing can handle, in the middle of an epoch."""
    code = (
        "import os, signal, sys, torch, apac\nfrom apac.runs import checkpointer\n"
        "torch.set_num_threads(1)\ncheckpointer.SECONDS_BETWEEN = 0.0\n"
        "config = apac.TrainConfig(epochs=2, batch_size=40, seed=6)\n"
        "left = list(range(13))\n"
        "def kill():\n    left.pop()\n    if not left:\n        os.kill(os.getpid(), signal.SIGKILL)\n"
        "apac.train('mnist-cnn', torch.load(sys.argv[1]), config=config, out=sys.argv[2], should_stop=kill)\n"
    )
    out, config = tmp_path / "run", apac.TrainConfig(epochs=2, batch_size=40, seed=6)
    torch.save(pair := (few.train_images, few.train_labels), tmp_path / "pair.pt")
    command = [sys.executable, "-c", code, str(tmp_path / "pair.pt"), str(out)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint.safetensors", "run.json"]
    resumed = apac.train("mnist-cnn", pair, config=config, out=out, resume=True)
    whole = apac.train("mnist-cnn", pair, config=config)
    for name, tensor in whole.network.state_dict().items():
        assert torch.equal(tensor, resumed.network.state_dict()[name])
