"""TrainConfig: defaults, validation, JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import apac
from apac.training.config import PAPER, TrainConfig


@pytest.mark.parametrize(
    ("network", "learning_rate", "weight_decay"),
    [
        ("mnist-cnn", 1 / 16, 5e-7),
        ("mnist-mlp", 1 / 32, 5e-6),
        ("cifar10-cnn", 1 / 256, 5e-7),
        ("cifar10-mlp", 1 / 256, 5e-7),
    ],
)
def test_defaults_are_the_papers_for_its_networks_and_data(network, learning_rate, weight_decay):
    config = TrainConfig().resolve(network, network.partition("-")[0])
    assert (config.learning_rate, config.weight_decay) == (learning_rate, weight_decay)
    assert (config.batch_size, config.momentum, config.schedule) == (100, 0.9, "exponential")
    assert network in PAPER


@pytest.mark.parametrize(
    ("network", "data"), [("cifar10-cnn", "/photos"), (None, "mnist"), ("mnist-cnn", None), ("a.b:c", "cifar10")]
)
def test_other_networks_and_data_get_values_for_small_data_sets(network, data):
    config = TrainConfig().resolve(network, data)
    assert (config.learning_rate, config.weight_decay) == (0.005, 5e-4)


def test_explicit_values_are_not_replaced():
    config = TrainConfig(
        learning_rate=0.3, weight_decay=0.0, normalization="zca", optimizer="sgd", schedule="cosine", warmup=0.0
    )
    assert (
        config.resolve("mnist-cnn", "mnist") == config.resolve("resnet", None) == config.resolve(None, None) == config
    )


def test_modern_networks_get_a_modern_recipe():
    config = TrainConfig().resolve("resnet", "/photos")
    assert (config.optimizer, config.learning_rate, config.weight_decay) == ("muon", 0.05, 0.01)
    assert (config.schedule, config.warmup) == ("cosine", 0.1)
    config = TrainConfig().resolve("timm:resnet18", "/photos")
    assert (config.optimizer, config.learning_rate, config.weight_decay) == ("adamw", 1e-3, 0.05)
    assert (config.schedule, config.warmup) == ("cosine", 0.1)


def test_muon_has_a_learning_rate_and_a_decoupled_decay_for_every_network():
    for network, data in (("cifar10-cnn", "cifar10"), ("mnist-cnn", "/photos"), ("a.b:c", None)):
        config = TrainConfig(optimizer="muon").resolve(network, data)
        assert (config.learning_rate, config.weight_decay) == (0.02, 0.05)


def test_adamw_has_a_learning_rate_of_its_own_for_every_network():
    for network in ("mnist-cnn", "resnet", "a.b:c", None):
        config = TrainConfig(optimizer="adamw").resolve(network, "mnist")
        assert (config.learning_rate, config.weight_decay) == (1e-3, 0.05)


def test_the_path_of_a_weights_file_is_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert TrainConfig(weights="a.safetensors").weights == str(tmp_path / "a.safetensors")


def test_a_configuration_survives_json():
    numbers: dict[str, Any] = {"learning_rate": np.float32(0.25), "epochs": np.int64(3)}
    config = TrainConfig(**numbers, schedule="cosine", ema_decay=0.9)
    assert TrainConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_on_unreadable_is_not_compared():
    assert TrainConfig(on_unreadable="skip") == TrainConfig()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epochs": 0}, "epochs of a TrainConfig must be an integer of at least 1"),
        ({"epochs": 1.5}, "epochs of a TrainConfig must be an integer"),
        ({"seed": None}, "seed of a TrainConfig must be an integer"),
        ({"replacement": "no"}, "replacement must be True or False"),
        ({"precision": "bf16"}, 'precision must be "float32" or "bfloat16", got \'bf16\''),
        ({"freeze": 1}, "freeze must be True or False"),
        ({"batch_size": 0}, "batch_size of a TrainConfig must be an integer of at least 1"),
        ({"learning_rate": "0.1"}, "learning_rate of a TrainConfig must be a number above 0"),
        ({"learning_rate": -1.0}, "learning_rate of a TrainConfig must be a number above 0"),
        ({"momentum": 1.0}, "momentum of a TrainConfig must be a number of at least 0 and below 1"),
        ({"ema_decay": 1.0}, "ema_decay of a TrainConfig must be a number of at least 0 and below 1"),
        ({"validation_fraction": 1.0}, "validation_fraction of a TrainConfig must be a number of at least 0 and below"),
        ({"weight_decay": -1.0}, "weight_decay of a TrainConfig must be a number of at least 0"),
        ({"tied": 1.0}, "tied of a TrainConfig must be a number of at least 0 and below 1"),
        ({"warmup": 1.0}, "warmup of a TrainConfig must be a number of at least 0 and below 1"),
        ({"optimizer": "adam"}, 'optimizer must be "sgd", "muon" or "adamw", got \'adam\''),
        ({"schedule": "step"}, 'schedule must be "exponential" or "cosine"'),
        ({"on_unreadable": "ignore"}, 'on_unreadable must be "refuse" or "skip"'),
    ],
)
def test_a_wrong_configuration_is_rejected_in_one_sentence(options, sentence):
    with pytest.raises(apac.InputError, match=sentence):
        replace(TrainConfig(), **options)
