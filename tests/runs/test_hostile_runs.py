"""Runs that ask for too much, or do not fit together, are refused before anything is allocated by their numbers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import apac
from apac import limits, models
from apac.errors import Interrupted
from apac.models import import_path
from apac.runs import storage
from apac.runs.checkpointer import Checkpointer
from apac.runs.folder import PRETRAINED
from apac.runs.labeled_images import images_held_out, images_to_test
from commands import refusal
from own_networks import linear

RECORD = {"epoch": 1, "learning_rate": 1.0, "loss": 1.0, "validation_error": 0.5, "seconds": 1.0}


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PRETRAINED / "mnist-cnn", tmp_path / "run"))


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"kind": "Compose", "parts": []}
    for _ in range(depth):
        value = {"kind": "Compose", "parts": [value]}
    return value


def change(folder: Path, **values: Any) -> None:
    payload = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(payload | values))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"deformation": nested(400)}, "damaged or truncated"),
        ({"deformation": nested(25)}, None),
        ({"deformation": {"kind": "Compose", "parts": [{"kind": "Flip"}] * 20_000}}, "10,000 parts"),
        ({"deformation": {"kind": "Elastic", "sigma": 1e8}}, "sigma of an Elastic must be a number between"),
        ({"image_shape": [1, 30_000, 30_000]}, "at most 67,108,864 values"),
        ({"image_shape": [1, 2000, 2000]}, "takes images of 28 × 28 pixels"),
        ({"image_shape": [1, 2000, 2000], "network": "resnet"}, "do not match each other"),
        ({"image_shape": [True, 28, 28]}, "must be three integers"),
        ({"image_shape": "128"}, "must be three integers"),
        ({"classes": [str(i) for i in range(99_999)]}, "do not match each other"),
        ({"classes": [str(i) for i in range(100_001)]}, "a list of 1 to 100,000 names"),
        ({"classes": "0123456789"}, "a list of 1 to 100,000 names"),
        ({"classes": ["crane", "crane", *"23456789"]}, "two classes have the name 'crane'"),
        ({"classes": ["\ud800", *"123456789"]}, "without control characters"),
        ({"classes": ["\x1b[2J", *"123456789"]}, "without control characters"),
        ({"network": 5}, "is damaged"),
        ({"network": "cifar10-mlp", "image_shape": [3, 32, 32]}, "do not match each other"),
        ({"normalization": []}, "there is no normalization"),
        ({"history": [{"epoch": "x", "learning_rate": 1, "loss": 1, "validation_error": 1, "seconds": 1}]}, "damaged"),
        ({"history": [RECORD | {"validation_error": 10**400}]}, "damaged"),
        ({"history": [RECORD | {"loss": float("nan")}]}, "damaged"),
        ({"config": {"seed": 10**4000}}, "seed"),
    ],
)
def test_a_run_that_asks_for_too_much_is_refused(values, sentence, shipped):
    change(shipped, **values)
    if sentence is None:
        (shipped / "tuning.json").unlink()
        apac.load(shipped)
        return
    with pytest.raises(apac.ApacError, match=sentence) as caught:
        apac.load(shipped)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


@pytest.mark.parametrize("data", ["/" + "a" * 300, "/" + "a\nb/" * 5000], ids=["long", "lines"])
def test_the_path_of_the_data_is_named_on_one_short_line(data, shipped):
    change(shipped, data=data)
    run = apac.load(shipped)
    for images in (images_to_test, images_held_out):
        with pytest.raises(apac.InputError, match="there is no folder") as caught:
            images(run)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000
    other = replace(run.settings, data="mnist-5k")
    assert "\n" not in run.settings.differences(other) and len(run.settings.differences(other)) < 1000


def test_no_network_is_built_by_the_numbers_of_a_run(shipped, monkeypatch):
    """The shapes of the stored tensors decide, and the network has no memory until they fit."""
    monkeypatch.setattr(models, "build", lambda *arguments, **options: pytest.fail("a network was built"))
    change(shipped, network="mnist-mlp")
    with pytest.raises(apac.StorageError, match="do not match each other"):
        apac.load(shipped)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused_when_the_run_is_loaded(value, shipped):
    tensors = load_file(shipped / "weights.safetensors")
    tensors["network.0.bias"][3] = value
    save_file(tensors, shipped / "weights.safetensors")
    with pytest.raises(apac.StorageError, match="have NaN or infinite values, in 'network"):
        apac.load(shipped)


@pytest.mark.parametrize("shape", [(), (2,), (1, 1)])
def test_a_normalization_of_another_shape_is_refused(shape, shipped):
    tensors = load_file(shipped / "weights.safetensors")
    tensors |= {"normalization.mean": torch.ones(shape), "normalization.deviation": torch.ones(shape)}
    save_file(tensors, shipped / "weights.safetensors")
    change(shipped, normalization="standardization")
    with pytest.raises(apac.InputError, match="needs tensors of the shapes"):
        apac.load(shipped)


def test_json_that_is_too_deep_too_large_or_a_pipe_is_refused(shipped):
    path = shipped / "run.json"
    for text in ("[" * 10_000, "[" * 10_000 + "]" * 10_000, "[" + "0," * (limits.JSON_VALUES + 1) + "0]"):
        path.write_text(text)
        assert "damaged or truncated" in refusal("evaluate", shipped)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(apac.StorageError, match="not a regular file"):
        apac.load(shipped)


@pytest.fixture
def headers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a tensor of a safetensors file is read."""

    class Header:
        """Of a safetensors file whose tensors must not be read."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            self._file = safe_open(*arguments, **options)

        def __enter__(self) -> Any:
            self._file.__enter__()
            return SimpleNamespace(keys=self._file.keys, get_slice=self._file.get_slice, metadata=dict)

        def __exit__(self, *error: object) -> None:
            self._file.__exit__(*error)

    monkeypatch.setattr(storage, "safe_open", Header)


@pytest.mark.parametrize("name", ["x", "junk.x", "normalization.x", "network.x"])
def test_tensors_that_a_run_does_not_have_are_refused_before_they_are_read(name, shipped, headers_only):
    path = shipped / "weights.safetensors"
    save_file(load_file(path) | {name: torch.zeros(5)}, path)
    with pytest.raises(apac.ApacError, match=r"do not match each other|needs the tensors \[\], got \['x'\]"):
        apac.load(shipped)


def test_weights_of_another_module_are_refused_before_they_are_read(shipped, headers_only):
    with pytest.raises(apac.InputError, match="network=, a Sequential, does not fit the weights"):
        apac.load(shipped, nn.Sequential(nn.Flatten(), nn.Linear(784, 10)))


def test_weights_of_another_module_are_refused_if_its_shapes_are_not_known(shipped):
    with pytest.raises(apac.InputError, match="network=, a Sequential, does not fit the weights"):
        apac.load(shipped, nn.Sequential(nn.Flatten(), nn.LazyLinear(10)))


def test_a_checkpoint_with_other_tensors_is_refused_before_they_are_read(tmp_path):
    run = tmp_path / "run"
    config = apac.TrainConfig(epochs=2, batch_size=10)
    data = (torch.rand(20, 1, 6, 6), torch.arange(20) % 2)
    arguments: dict[str, Any] = {"deformation": apac.Flip(), "config": config, "out": run}
    with pytest.raises(Interrupted):
        apac.train(linear((1, 6, 6), 2), data, **arguments, should_stop=lambda: True)
    path = run / "checkpoint.safetensors"
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    for name in ("x", "network.x", "momentum_buffer.x"):
        save_file(load_file(path) | {name: torch.zeros(5)}, tmp_path / "changed", metadata)
        with pytest.raises(apac.InputError, match="belongs to another training"):
            checkpoint_of(tmp_path / "changed", config).read(linear((1, 6, 6), 2))
    assert checkpoint_of(path, config).read(linear((1, 6, 6), 2)) is not None


def checkpoint_of(path: Path, config: apac.TrainConfig) -> Checkpointer:
    return Checkpointer(path, config.resolve(None, None), None)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bool, torch.complex64])
def test_a_normalization_of_another_type_is_converted_or_refused(dtype, tmp_path):
    pixels = torch.arange(20 * 3 * 64).to(torch.uint8).view(20, 3, 8, 8)
    data = (pixels, torch.arange(20) % 2)
    apac.train("own_networks:linear", data, apac.Flip(), config=apac.TrainConfig(epochs=1), out=tmp_path / "run")
    path = tmp_path / "run" / "weights.safetensors"
    tensors = load_file(path)
    tensors["normalization.mean"] = tensors["normalization.mean"].to(dtype)
    save_file(tensors, path)
    if dtype.is_complex:
        with pytest.raises(apac.ApacError, match="complex"):
            apac.load(tmp_path / "run")
    else:
        run = apac.load(tmp_path / "run")
        assert run.classifier(apac.FixedPasses(2)).decide(run.normalize(pixels)).labels.shape == (20,)


def test_temperatures_for_absurd_numbers_of_passes_are_refused(shipped):
    path = shipped / "tuning.json"
    payload = json.loads(path.read_text())
    for candidate in payload["choice"]["candidates"]:
        candidate["temperatures"] = [[10**400, 1.0], [10**401, 1.0]]
    path.write_text(json.dumps(payload))
    with pytest.raises(apac.ApacError, match=r"tuning\.json is damaged"):
        apac.load(shipped)


def test_a_header_of_weights_that_is_too_large_is_refused(shipped):
    size = limits.TENSOR_HEADER_BYTES + 8
    (shipped / "weights.safetensors").write_bytes(size.to_bytes(8, "little") + b"{" + b" " * size)
    with pytest.raises(apac.StorageError, match="damaged or truncated"):
        apac.load(shipped)


def test_a_checkpoint_that_is_not_finite_is_refused_before_the_training_diverges(tmp_path):
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
    data = torch.rand(8, 1, 4, 4), torch.arange(8) % 2
    options: Any = {"config": apac.TrainConfig(epochs=2, validation_fraction=0), "out": tmp_path / "run"}
    with pytest.raises(Interrupted):
        apac.train(network, data, apac.Flip(), should_stop=lambda: True, **options)
    path = tmp_path / "run" / "checkpoint.safetensors"
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    save_file({name: torch.full_like(tensor, torch.nan) for name, tensor in load_file(path).items()}, path, metadata)
    with pytest.raises(apac.StorageError, match="have NaN or infinite values"):
        apac.train(network, data, apac.Flip(), resume=True, **options)


def test_too_many_tensors_are_refused(shipped, monkeypatch):
    monkeypatch.setattr(limits, "TENSORS", 7)  # it has eight
    with pytest.raises(apac.StorageError, match="damaged or truncated"):
        apac.load(shipped)


@pytest.mark.parametrize("name", ["run.json", "weights.safetensors", "tuning.json", "reliability.json"])
def test_a_file_that_is_cut_anywhere_is_refused_or_ignored(name, shipped):
    whole = (shipped / name).read_bytes()
    for part in range(20):
        (shipped / name).write_bytes(whole[: len(whole) * part // 20])
        try:
            apac.load(shipped)
        except apac.ApacError as error:
            assert "\n" not in str(error)
        else:
            assert name == "reliability.json"  # how often answers were right, which a decision does not need


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        (None, "trained from a module; pass a module"),
        ("nomod:build", "the network is built by nomod:build: import nomod first"),
        ("nomod:" + "b" * 100_000, "import nomod first"),
        ("m" * 100_000 + ":build", "import mmm.*… first"),
        ("no mod:" + "b" * 100_000, "is given as package.module:function"),
        ("os:" + "b" * 100_000, "has no function 'bbb"),
        ("timm:" + "x" * 100_000, "timm"),
        ("x" * 100_000, "x"),
    ],
)
def test_a_network_that_cannot_be_rebuilt_is_refused_before_its_weights_are_read(
    network, sentence, shipped, headers_only
):
    change(shipped, network=network)
    with pytest.raises(apac.InputError, match=sentence) as caught:
        apac.load(shipped)
    assert len(str(caught.value)) < 1000


def test_a_module_with_a_state_of_its_own_does_not_fit(shipped):
    class Counting(nn.Module):
        def get_extra_state(self) -> int:
            return 1

        def set_extra_state(self, state: int) -> None:
            pass

    with pytest.raises(apac.InputError, match="network=, a Counting, does not fit the weights"):
        apac.load(shipped, Counting())


def test_no_function_of_a_library_that_comes_with_this_package_is_called(tmp_path):
    Image.new("L", (28, 28)).save(tmp_path / "digit.png")
    code = "import sys, apac.cli, apac; apac.load('mnist-cnn').classify(['digit.png']); print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    packages = {name.partition(".")[0] for name in result.stdout.split()} - sys.stdlib_module_names
    # Of the interpreter and of an editable installation; none has a function of two such arguments.
    others = {"__main__", "__mp_main__", "_distutils_hack"}
    assert packages - others - import_path.LIBRARIES == set()
