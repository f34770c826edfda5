"""The paper's loop, against arithmetic done by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import apac
from apac.randomness import generator
from apac.training import loop
from apac.training.config import PAPER, TrainConfig

CONFIG = TrainConfig("mnist-5k", "cnn", epochs=2, batch=20, rate=0.03, l2=0.01, seed=4)


@pytest.fixture
def part(digits: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return digits[0][:90], digits[1][:90]


def train(config: TrainConfig, part: tuple[Tensor, Tensor], **options) -> loop.State:
    state = loop.begin(config)
    loop.advance(state, config, *part, (part[0][:0], part[1][:0]), **options)
    return state


def weights_of(network: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in network.parameters()])


@pytest.mark.parametrize("deformation", [apac.presets.mnist(), apac.Compose()], ids=["deformed", "plain"])
def test_a_step_is_momentum_sgd_with_l2_on_the_weights_over_fresh_virtual_samples(part, deformation):
    config = replace(CONFIG, deformation=deformation, epochs=1)
    network = loop.begin(config).network
    velocity = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
    for step in range(math.ceil(90 / 20)):
        random = generator(4, "training step", step)
        index = torch.randint(90, (20,), generator=random)
        images = part[0][index]
        virtual = deformation.apply(images, deformation.sample(20, (1, 28, 28), generator=random))
        loss = functional.nll_loss(network(virtual).log_softmax(1), part[1][index])
        gradients = torch.autograd.grad(loss, list(network.parameters()))
        with torch.no_grad():
            for (name, p), gradient in zip(network.named_parameters(), gradients, strict=True):
                decay = 0.01 * p if name.endswith("weight") else 0.0
                velocity[name] = 0.9 * velocity[name] + gradient + decay
                p -= 0.03 * velocity[name]
    torch.testing.assert_close(weights_of(train(config, part).network), weights_of(network), atol=1e-6, rtol=1e-5)


def test_samples_are_drawn_with_replacement_and_each_virtual_sample_is_used_once(part, monkeypatch):
    seen: list[Tensor] = []
    deform = loop.deform
    monkeypatch.setattr(loop, "deform", lambda u, x, y, g: seen.append(v := deform(u, x, y, g)) or v)
    originals: list[Tensor] = []
    randint = torch.randint
    # the first of a step draws the images; later ones, of another shape, are the deformation's
    monkeypatch.setattr(
        torch, "randint", lambda *a, **k: ((i := randint(*a, **k)).ndim == 1 and originals.append(i)) or i
    )
    train(replace(CONFIG, epochs=4), part)
    index, virtual = torch.cat(originals), torch.cat(seen)
    assert len(virtual) == len(index) == 4 * 5 * 20
    assert any(len(batch.unique()) < 20 for batch in originals)  # the same original twice in one mini-batch
    assert len(index.unique()) == 90
    assert len(torch.unique(virtual.flatten(1), dim=0)) == len(virtual)


def test_class_distinctive_training_deforms_each_sample_by_its_class(part, monkeypatch):
    u = apac.PerClass({1: apac.Compose(), 7: apac.Compose()}, default=apac.Homography(std=0.3), classes=10)
    seen = []
    deform = loop.deform
    monkeypatch.setattr(loop, "deform", lambda u, x, y, g: seen.append((x, y, v := deform(u, x, y, g))) or v)
    train(replace(CONFIG, deformation=u, epochs=1), part)
    originals, labels, virtual = (torch.cat(column) for column in zip(*seen, strict=True))
    same = (originals == virtual).flatten(1).all(1)
    assert torch.equal(same, (labels == 1) | (labels == 7))
    assert same.any()


def test_the_papers_rate_falls_by_9993_an_epoch_and_the_cosine_ends_at_nothing():
    config = replace(CONFIG, rate=0.5, epochs=10)
    assert [loop.rate_at(config, step, 5) for step in (0, 4, 5, 49)] == pytest.approx(
        [0.5, 0.5, 0.49965, 0.5 * 0.9993**9]
    )
    cosine = replace(config, schedule="cosine")
    assert [loop.rate_at(cosine, step, 5) for step in (0, 25, 50)] == pytest.approx([0.5, 0.25, 0.0])


def test_a_warm_up_grows_evenly_to_the_rate_from_which_the_schedule_goes_on():
    config = replace(CONFIG, rate=0.5, epochs=10, warmup=0.2)  # 10 of 50 steps
    assert [loop.rate_at(config, step, 5) for step in (0, 4, 9)] == pytest.approx([0.5 / 11, 2.5 / 11, 5 / 11])
    assert [loop.rate_at(config, step, 5) for step in (10, 15)] == pytest.approx([0.5, 0.5 * 0.9993])
    cosine = replace(config, schedule="cosine")
    assert [loop.rate_at(cosine, step, 5) for step in (9, 10, 30, 50)] == pytest.approx([5 / 11, 0.5, 0.25, 0.0])


def test_muon_orthogonalises_the_hidden_weights_alone():
    state = loop.begin(replace(CONFIG, optimizer="muon", momentum=0.95))
    hidden, last, biases = state.optimizer.param_groups
    assert [p.shape for p in hidden["params"]] == [(20, 1, 5, 5), (40, 20, 5, 5), (150, 640)]
    assert [p.shape for p in last["params"]] == [(10, 150)]
    assert all(p.ndim == 1 for p in biases["params"]) and len(biases["params"]) == 4
    assert [group["orthogonal"] for group in (hidden, last, biases)] == [True, False, False]
    assert [group["weight_decay"] for group in (hidden, last, biases)] == [CONFIG.l2, CONFIG.l2, 0]
    assert {group["momentum"] for group in (hidden, last, biases)} == {0.95}


def test_muon_learns(part):
    state = train(replace(CONFIG, optimizer="muon", rate=0.02, epochs=8), part)
    assert state.history[-1].loss < 0.7 * state.history[0].loss


def test_averaged_weights_follow_by_the_decay_and_are_the_result(part):
    trail = []
    config = replace(CONFIG, average=0.6)
    state = train(config, part, after_step=lambda state: trail.append(weights_of(state.network)))
    mean = weights_of(loop.begin(config).network)
    for step, weights in enumerate(trail, start=1):
        decay = min(0.6, (1 + step) / (10 + step))
        mean = decay * mean + (1 - decay) * weights
    assert state.result is state.averaged
    held = part[0][:40], part[1][:40]
    again = loop.begin(config)
    loop.advance(again, config, *part, held)
    assert again.history[-1].validation_error == loop.plain_error(state.averaged, *held)
    torch.testing.assert_close(weights_of(state.result), mean, atol=1e-6, rtol=1e-5)


def test_the_same_configuration_gives_the_same_weights_and_another_seed_others(part):
    first, again, other = (train(replace(CONFIG, seed=seed), part) for seed in (4, 4, 5))
    assert torch.equal(weights_of(first.network), weights_of(again.network))
    assert not torch.equal(weights_of(first.network), weights_of(other.network))


def test_the_history_has_the_loss_and_the_plain_error_on_held_out_images(part, digits):
    held = digits[0][500:560], digits[1][500:560]
    state = loop.begin(CONFIG)
    loop.advance(state, CONFIG, *part, held)
    wrong = sum(int(state.network(image[None]).argmax()) != int(label) for image, label in zip(*held, strict=True))
    assert [epoch.epoch for epoch in state.history] == [1, 2]
    assert state.history[-1].validation_error == wrong / 60
    assert state.history[0].loss == pytest.approx(2.4, abs=0.5)
    assert state.history[0].seconds < state.history[1].seconds


def test_training_lowers_the_loss(part):
    state = train(replace(CONFIG, epochs=25, l2=0.0), part)
    assert state.history[-1].loss < 0.6 * state.history[0].loss


def test_a_training_that_diverges_says_so(part):
    with pytest.raises(apac.InputError, match=r"training diverged in step .*; begin again with a rate below 1e\+06"):
        train(replace(CONFIG, rate=1e6), part)


@pytest.mark.parametrize(
    ("data", "model"), [("mnist", "cnn"), ("mnist", "mlp"), ("cifar10", "cnn"), ("cifar10", "mlp")]
)
def test_defaults_are_the_papers(data, model):
    config = TrainConfig(data, model)
    rates = {"mnist-cnn": 1 / 16, "mnist-mlp": 1 / 32, "cifar10-cnn": 1 / 256, "cifar10-mlp": 1 / 256}
    assert config.rate == rates[config.network]
    assert config.l2 == (5e-6 if config.network == "mnist-mlp" else 5e-7)
    assert (config.batch, config.momentum, config.schedule) == (100, 0.9, "paper")
    assert config.deformation == getattr(apac.presets, data)()
    assert set(PAPER) == {"mnist-cnn", "mnist-mlp", "cifar10-cnn", "cifar10-mlp"}


def test_a_configuration_survives_json():
    assert json.dumps(replace(CONFIG, rate=np.float32(0.25), epochs=np.int64(3)).to_json())
    config = replace(CONFIG, deformation=apac.PerClass({1: apac.Compose()}, default=apac.presets.mnist(), classes=10))
    assert TrainConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"data": "svhn"}, "there is no data set 'svhn'; choose one of mnist-5k, mnist, cifar10"),
        ({"model": "rnn"}, "there is no model 'rnn'; choose cnn or mlp"),
        ({"epochs": 0}, "epochs of a TrainConfig must be a whole number of at least 1"),
        ({"epochs": 1.5}, "epochs of a TrainConfig must be a whole number"),
        ({"seed": None}, "seed of a TrainConfig must be a whole number"),
        ({"data": ["mnist"]}, "there is no data set"),
        ({"rate": "0.1"}, "rate of a TrainConfig must be a number above 0"),
        ({"batch": 0}, "batch of a TrainConfig must be a whole number of at least 1"),
        ({"rate": -1.0}, "rate of a TrainConfig must be a number above 0"),
        ({"momentum": 1.0}, "momentum of a TrainConfig must be a number of at least 0 and below 1"),
        ({"average": 1.0}, "average of a TrainConfig must be a number of at least 0 and below 1"),
        ({"validation": 1.0}, "validation of a TrainConfig must be a number of at least 0 and below 1"),
        ({"l2": -1.0}, "l2 of a TrainConfig must be a number of at least 0"),
        ({"tied": 0.5}, "only the weights of an mlp can be tied at first, not those of a cnn"),
        ({"model": "mlp", "tied": 1.0}, "tied of a TrainConfig must be a number of at least 0 and below 1"),
        ({"warmup": 1.0}, "warmup of a TrainConfig must be a number of at least 0 and below 1"),
        ({"optimizer": "adam"}, '"sgd" or "muon"'),
        ({"schedule": "step"}, '"paper" or "cosine"'),
        ({"deformation": "mnist"}, "must be a Deformation"),
        ({"deformation": apac.PerClass({0: apac.Compose()}, classes=1)}, "10 classes, but the PerClass was made for 1"),
    ],
)
def test_a_wrong_configuration_is_refused_in_one_sentence(options, sentence):
    with pytest.raises(apac.InputError, match=sentence):
        TrainConfig(**options)
