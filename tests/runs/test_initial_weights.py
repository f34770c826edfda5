"""Initial weights from a safetensors file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import apac
from apac import limits, models
from apac.randomness import generator
from apac.runs.initial_weights import load_weights


def network(classes: int = 4, seed: int = 0) -> nn.Sequential:
    return models.build("resnet", generator=generator(seed, "test", 0), image_shape=(3, 16, 16), classes=classes)


def write(path: Path, change: dict[str, Tensor | None] | None = None, **options: Any) -> Path:
    """Write the weights of another network; None removes a tensor."""
    tensors = {k: v.contiguous() for k, v in network(seed=1, **options).state_dict().items()} | (change or {})
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    return path


def test_all_weights_of_the_file_are_loaded(tmp_path, caplog):
    own = network()
    load_weights(own, write(tmp_path / "a.safetensors"))
    for name, tensor in network(seed=1).state_dict().items():
        assert torch.equal(own.state_dict()[name], tensor), name
    assert not caplog.records


def test_a_last_layer_for_other_classes_keeps_its_own_weights_which_is_said(tmp_path, caplog):
    own = network()
    before = own[-1].weight.clone()  # type: ignore[operator]
    load_weights(own, write(tmp_path / "a.safetensors", classes=1000))
    assert torch.equal(own[-1].weight, before)  # type: ignore[arg-type]
    assert torch.equal(own.state_dict()["0.weight"], network(seed=1).state_dict()["0.weight"])
    (record,) = caplog.records
    assert "starts with random weights" in record.message and "another number of classes" in record.message


def test_files_without_the_counters_of_batch_normalization_are_accepted(tmp_path):
    counters: dict[str, Tensor | None] = {
        name: None for name in network().state_dict() if name.endswith("num_batches_tracked")
    }
    assert counters
    load_weights(network(), write(tmp_path / "a.safetensors", counters))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"0.weight": torch.zeros(32, 1, 3, 3), "3.residual.0.weight": torch.zeros(1)},
            r"the tensor '0.weight' of .* has shape \(32, 1, 3, 3\), and that of the network \(32, 3, 3, 3\); give",
        ),
        ({"1.weight": None}, r"has no tensor '1.weight', which the network has; \d+ of its \d+ tensors are there"),
        ({"extra": torch.zeros(1)}, "has a tensor 'extra', which the network does not have"),
        ({"9.weight": torch.zeros(4, 9)}, r"the tensor '9.weight' of .* has shape \(4, 9\)"),
    ],
)
def test_the_first_tensor_that_does_not_fit_is_named_with_both_shapes(tmp_path, change, sentence):
    own = network()
    before = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    with pytest.raises(apac.InputError, match=sentence) as caught:
        load_weights(own, write(tmp_path / "a.safetensors", change))
    assert "\n" not in str(caught.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in own.state_dict().items())


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 pickled weights"])
def test_a_file_that_is_not_safetensors_is_rejected_in_one_sentence(tmp_path, content):
    path = tmp_path / "a.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(apac.ApacError, match=r"no weights file|is damaged or truncated; give a safetensors") as caught:
        load_weights(network(), path)
    assert "\n" not in str(caught.value)


def test_training_with_weights_starts_from_them_and_resumes_without_the_file(tmp_path):
    path = write(tmp_path / "a.safetensors")
    pair = (
        torch.randint(256, (20, 3, 16, 16), dtype=torch.uint8, generator=generator(0, "test", 0)),
        torch.arange(20) % 4,
    )
    config = apac.TrainConfig(epochs=2, batch_size=10, weights=str(path), validation_fraction=0.0)
    whole = apac.train("resnet", pair, apac.Flip(), config=config)
    assert whole.config.weights == str(path)

    polls = iter([False, False, True])
    with pytest.raises(apac.errors.Interrupted):
        apac.train("resnet", pair, apac.Flip(), config=config, out=tmp_path / "run", should_stop=lambda: next(polls))
    path.unlink()
    resumed = apac.train("resnet", pair, apac.Flip(), config=config, out=tmp_path / "run", resume=True)
    for name, tensor in whole.network.state_dict().items():
        assert torch.equal(resumed.network.state_dict()[name], tensor), name


@pytest.mark.parametrize("prefix", ["network.", "module."])
def test_the_weights_of_a_run_and_of_data_parallel_are_recognized_by_their_prefix(prefix, tmp_path):
    own = network()
    tensors = {f"{prefix}{name}": tensor.contiguous() for name, tensor in network(seed=1).state_dict().items()}
    if prefix == "network.":
        tensors["normalization.mean"] = torch.zeros(3)
    save_file(tensors, tmp_path / "a.safetensors")
    load_weights(own, tmp_path / "a.safetensors")
    assert torch.equal(own[0].weight, network(seed=1)[0].weight)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_weights_that_are_not_finite_are_refused(value, tmp_path):
    path = write(tmp_path / "a.safetensors", {"0.weight": torch.full((32, 3, 3, 3), value)})
    with pytest.raises(apac.StorageError, match=r"a\.safetensors have NaN or infinite values, in '0\.weight'; give a"):
        load_weights(network(), path)


def test_a_file_is_refused_by_its_header_before_its_tensors_are_read(tmp_path, monkeypatch):
    path = write(tmp_path / "a.safetensors")
    with monkeypatch.context() as patch:
        patch.setattr(limits, "TENSORS", 7)
        with pytest.raises(apac.StorageError, match="is damaged or truncated; give a safetensors"):
            load_weights(network(), path)
    header = json.dumps({"x" * 2000: {"dtype": "F32", "shape": [2 << 30], "data_offsets": [0, 8 << 30]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with path.open("r+b") as file:
        file.truncate(8 + len(header) + (8 << 30))  # without contents
    with pytest.raises(apac.InputError, match=r"has no tensor '0\.weight'") as caught:
        load_weights(network(), path)
    assert len(str(caught.value)) < 1000
