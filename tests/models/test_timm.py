"""Networks of timm by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import apac
from apac import errors
from apac.models import timm_network
from apac.randomness import generator

CONFIG = apac.TrainConfig(epochs=1, batch_size=10, validation_fraction=0.0)


@pytest.fixture
def timm() -> Any:
    return pytest.importorskip("timm")


@pytest.fixture(scope="module")
def pair() -> tuple[Tensor, Tensor]:
    random = generator(0, "test", 0)
    return torch.randint(256, (20, 3, 32, 32), dtype=torch.uint8, generator=random), torch.arange(20) % 4


@pytest.mark.parametrize("name", ["timm:test_resnet", "timm:test_vit"])
def test_a_network_of_timm_is_trained_at_the_size_of_the_images_and_loaded_again(timm, pair, tmp_path, name):
    run = apac.train(name, pair, apac.Flip(), config=CONFIG, out=tmp_path / "run")
    assert (run.network_name, run.config.optimizer) == (name, "adamw")
    loaded = apac.load(tmp_path / "run")
    for key, tensor in run.network.state_dict().items():
        assert torch.equal(loaded.network.state_dict()[key], tensor), key


def test_with_a_weights_file_it_starts_from_the_file_with_the_constants_of_timm(timm, pair, tmp_path, caplog):
    published = timm.create_model("test_resnet", pretrained=False, num_classes=7)
    save_file(published.state_dict(), tmp_path / "weights.safetensors")
    config = apac.TrainConfig(epochs=1, batch_size=10, freeze=True, weights=str(tmp_path / "weights.safetensors"))
    run = apac.train("timm:test_resnet", pair, apac.Flip(), config=config, out=tmp_path / "run")
    assert "the last layer fc starts with random weights" in caplog.text
    for key, tensor in published.state_dict().items():
        assert key.startswith("fc.") or torch.equal(run.network.state_dict()[key], tensor), key
    (tmp_path / "weights.safetensors").unlink()
    loaded = apac.load(tmp_path / "run")  # needs no weights file
    tensors = loaded.normalization.tensors()
    assert tensors["mean"].tolist() == list(published.pretrained_cfg["mean"])
    assert tensors["deviation"].tolist() == list(published.pretrained_cfg["std"])


def test_initial_weights_depend_on_the_seed_and_leave_the_global_generators_alone(timm):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    networks = [timm_network.build_timm("timm:test_resnet", (1, 32, 32), 4, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), before)
    first, again, other = (network.state_dict()["conv1.0.weight"] for network in networks)
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("timm:test_resne", "timm has no network 'test_resne'; the closest are test_resnet"),
        ("timm:hf-hub:a/b", "timm has no network 'hf-hub:a/b'"),  # it would be downloaded
        ("timm:", "timm has no network ''"),
    ],
)
def test_an_unknown_name_is_rejected_in_one_sentence(timm, pair, name, sentence):
    with pytest.raises(apac.InputError, match=sentence):
        apac.train(name, pair, apac.Flip())


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ImportError("no"), r"timm is not installed; run: pip install 'augmented-pattern-classification\[timm\]'"),
        (RuntimeError("no operator."), "timm cannot be imported: no operator; install the version of torchvision"),
    ],
)
def test_where_timm_cannot_be_imported_one_sentence_says_so(monkeypatch, pair, error, sentence):
    def fail(module: str) -> Any:
        raise error

    monkeypatch.setattr(errors, "import_module", fail)
    with pytest.raises(apac.InputError, match=sentence):
        apac.train("timm:resnet18", pair, apac.Flip())
