"""apac train."""

from __future__ import annotations

import csv
import re
import shlex
import signal
import subprocess
import sys

import pytest
import torch

import apac
from apac.cli.signals import stop_on_signal
from apac.runs.checkpointer import Checkpointer
from apac.training.loop import TrainingState
from commands import call, refusal, succeed
from image_folders import COLORS, gallery, paint

SHORT = ["--epochs", "1", "--batch-size", "40"]


def test_train_prints_the_outcome_and_the_next_command(tmp_path, few):
    result = succeed("train", "--out", tmp_path / "run", *SHORT, "--plain", "--network", "mnist-cnn", "--seed", 3)
    assert re.search(r"mnist-cnn, 1 epochs in \d+ s, loss \d", result.stdout)
    assert "next: apac evaluate" in result.stdout
    run = apac.load(tmp_path / "run")
    assert (run.deformation, run.config.seed, run.config.batch_size) == (apac.Compose(), 3, 40)


def test_every_option_reaches_the_configuration(tmp_path, few):
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
        "ema_decay": 0.5,
        "validation_fraction": 0.2,
        "seed": 7,
        "on_unreadable": "skip",
    }
    flags = [item for name, value in options.items() for item in (f"--{name.replace('_', '-')}", value)]
    succeed("train", "--network", "mnist-mlp", *flags, "--out", tmp_path / "run")
    assert apac.load(tmp_path / "run").config.to_json() == options


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
    succeed("train", "--network", "folder_networks:build", "--out", "run", *SHORT)
    assert apac.load("run").network_name == "folder_networks:build"
    monkeypatch.delitem(sys.modules, "folder_networks")
    sentence = refusal("train", "--resume", "--out", "run")
    assert "give it again: --network folder_networks:build" in sentence
    succeed("train", "--resume", "--network", "folder_networks:build", "--out", "run")
    monkeypatch.delitem(sys.modules, "folder_networks")


def test_the_command_trains_on_a_folder_evaluates_it_and_classifies_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = gallery(tmp_path / "photos", 12)
    short = ["--epochs", 12, "--batch-size", 8, "--schedule", "cosine"]
    succeed("train", "--data", "photos", "--out", "run", *short)
    run = apac.load("run")
    assert run.classes == ("apple", "leaf", "sky") and run.image_shape == (3, 32, 32)
    assert (run.network_name, run.data, run.deformation) == ("cifar10-cnn", str(root), apac.presets.cifar10())
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
    assert result.stdout == ""
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
