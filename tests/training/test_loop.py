"""The training loop, compared with explicit arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import apac
from apac.deform.base import Deformation
from apac.randomness import generator
from apac.training import loop
from small_training import CONFIG, MNIST, fresh, noisy_network, train, weights_of


@pytest.fixture
def part(digits: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return digits[0][:90], digits[1][:90]


@dataclass(frozen=True)
class Recording(Deformation):
    """A deformation that records its inputs and outputs."""

    other: Deformation
    seen: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    def sample(self, n, image_shape, *, generator):
        raise NotImplementedError

    def apply(self, images, parameters):
        raise NotImplementedError

    def __call__(self, images, *, generator, labels=None):
        virtual = self.other(images, generator=generator, labels=labels)
        self.seen.append((images, labels, virtual))
        return virtual

    @property
    def batches(self) -> tuple[Tensor, Tensor, Tensor]:
        originals, labels, virtual = (torch.cat(column) for column in zip(*self.seen, strict=True))
        return originals, labels, virtual


@pytest.mark.parametrize("deformation", [MNIST, apac.Compose()], ids=["deformed", "plain"])
def test_a_step_is_momentum_sgd_with_weight_decay_on_the_weights_over_fresh_virtual_samples(part, deformation):
    config = replace(CONFIG, epochs=1)
    network = fresh(config).network
    buffer = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
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
                buffer[name] = 0.9 * buffer[name] + gradient + decay
                p.sub_(0.03 * buffer[name])
    trained = train(config, part, deformation).network
    # float32 rounding of five steps, with convolutions in another memory format
    torch.testing.assert_close(weights_of(trained), weights_of(network), atol=1e-5, rtol=1e-4)


def test_samples_are_drawn_with_replacement_and_each_virtual_sample_is_used_once(part):
    recording = Recording(MNIST)
    train(replace(CONFIG, epochs=4), part, recording, prefetch=False)
    originals, labels, virtual = recording.batches
    assert len(virtual) == 4 * 5 * 20
    numbers = [int((part[0] == image).flatten(1).all(1).nonzero()[0]) for image in originals]
    assert [int(label) for label in labels] == [int(part[1][number]) for number in numbers]
    assert any(len(set(numbers[start : start + 20])) < 20 for start in range(0, 400, 20))  # twice in one batch
    assert len(set(numbers)) == 90
    assert len(torch.unique(virtual.flatten(1), dim=0)) == len(virtual)


def test_without_replacement_no_image_is_drawn_again_before_all_others_and_orders_differ(part):
    recording = Recording(MNIST)
    train(replace(CONFIG, epochs=4, replacement=False), part, recording, prefetch=False)
    originals, labels, virtual = recording.batches
    numbers = [int((part[0] == image).flatten(1).all(1).nonzero()[0]) for image in originals]
    assert [int(label) for label in labels] == [int(part[1][number]) for number in numbers]
    orders = [numbers[start : start + 90] for start in range(0, 360, 90)]  # an epoch has 5 steps, 100 images
    assert all(sorted(order) == list(range(90)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert len(torch.unique(virtual.flatten(1), dim=0)) == len(virtual) == 400


def test_class_distinctive_training_deforms_each_sample_by_its_class(part):
    u = apac.PerClass({1: apac.Compose(), 7: apac.Compose()}, default=apac.Homography(std=0.3), classes=10)
    recording = Recording(u)
    train(replace(CONFIG, epochs=1), part, recording, prefetch=False)
    originals, labels, virtual = recording.batches
    unchanged = (originals == virtual).flatten(1).all(1)
    assert torch.equal(unchanged, (labels == 1) | (labels == 7))
    assert unchanged.any()


def test_the_papers_learning_rate_falls_by_9993_per_epoch_and_the_cosine_ends_at_zero():
    config = replace(CONFIG, learning_rate=0.5, epochs=10)
    rates = [loop.learning_rate_at(config, step, 5) for step in (0, 4, 5, 49)]
    assert rates == pytest.approx([0.5, 0.5, 0.49965, 0.5 * 0.9993**9])
    cosine = replace(config, schedule="cosine")
    assert [loop.learning_rate_at(cosine, step, 5) for step in (0, 25, 50)] == pytest.approx([0.5, 0.25, 0.0])


def test_warmup_grows_linearly_to_the_learning_rate_at_which_the_schedule_starts():
    config = replace(CONFIG, learning_rate=0.5, epochs=10, warmup=0.2)  # 10 of 50 steps
    rates = [loop.learning_rate_at(config, step, 5) for step in (0, 4, 9, 10, 15)]
    assert rates == pytest.approx([0.5 / 11, 2.5 / 11, 5 / 11, 0.5, 0.5 * 0.9993])
    cosine = replace(config, schedule="cosine")
    rates = [loop.learning_rate_at(cosine, step, 5) for step in (9, 10, 30, 50)]
    assert rates == pytest.approx([5 / 11, 0.5, 0.25, 0.0])


def test_muon_orthogonalizes_the_updates_of_hidden_weights_only():
    state = fresh(replace(CONFIG, optimizer="muon", momentum=0.95))
    hidden, last, biases = state.optimizer.param_groups
    assert [p.shape for p in hidden["params"]] == [(20, 1, 5, 5), (40, 20, 5, 5), (150, 640)]
    assert [p.shape for p in last["params"]] == [(10, 150)]
    assert all(p.ndim == 1 for p in biases["params"]) and len(biases["params"]) == 4
    assert [group["orthogonal"] for group in (hidden, last, biases)] == [True, False, False]
    assert [group["weight_decay"] for group in (hidden, last, biases)] == [0.01, 0.01, 0]
    assert {group["momentum"] for group in (hidden, last, biases)} == {0.95}


@pytest.mark.parametrize("optimizer", ["sgd", "muon", "adamw"])
def test_frozen_parameters_do_not_change(part, optimizer):
    network = noisy_network()
    network[0].requires_grad_(False)
    before = weights_of(network[0])
    train(replace(CONFIG, epochs=1, optimizer=optimizer), part, network=network)
    assert torch.equal(weights_of(network[0]), before)


def test_the_moving_average_follows_the_weights_and_is_the_result(part):
    trail: list[Tensor] = []
    config, held_out = replace(CONFIG, ema_decay=0.6), (part[0][:40], part[1][:40])
    state = train(config, part, held_out=held_out, after_step=lambda state: trail.append(weights_of(state.network)))
    mean = weights_of(fresh(config).network)
    for step, weights in enumerate(trail, start=1):
        decay = min(0.6, (1 + step) / (10 + step))
        mean = decay * mean + (1 - decay) * weights
    # float32 rounding of ten updates
    torch.testing.assert_close(weights_of(state.result), mean, atol=1e-6, rtol=1e-5)
    assert state.history[-1].validation_error == loop.plain_error(state.result, *held_out)


def test_the_moving_average_includes_the_buffers_of_batch_normalization(part):
    trail: list[Tensor] = []

    def record(state: loop.TrainingState) -> None:
        trail.append(state.network.get_buffer("1.running_mean").clone())

    network = noisy_network()
    mean = network.get_buffer("1.running_mean").clone()
    state = train(replace(CONFIG, ema_decay=0.6), part, network=network, after_step=record)
    for step, value in enumerate(trail, start=1):
        mean = torch.lerp(value, mean, min(0.6, (1 + step) / (10 + step)))
    torch.testing.assert_close(state.result.get_buffer("1.running_mean"), mean, atol=1e-6, rtol=1e-5)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(part):
    first, again, other = (train(replace(CONFIG, seed=seed, epochs=1), part) for seed in (4, 4, 5))
    assert torch.equal(weights_of(first.network), weights_of(again.network))
    assert not torch.equal(weights_of(first.network), weights_of(other.network))


def test_dropout_follows_the_seed_and_the_global_generator_is_restored(part):
    weights = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        before = torch.get_rng_state()
        weights.append(weights_of(train(CONFIG, part, network=noisy_network()).network))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(*weights)
    # Two steps draw different masks: with the same images the losses of a frozen network differ.
    still = replace(CONFIG, epochs=4, learning_rate=1e-12)
    same = part[0][:1].expand(20, -1, -1, -1).contiguous(), part[1][:1].expand(20).contiguous()
    losses = [epoch.loss for epoch in train(still, same, apac.Compose(), network=noisy_network()).history]
    assert len(set(losses)) == 4


def test_the_held_out_error_is_that_of_eval_mode_and_training_continues_in_train_mode(part):
    modes = []
    network = noisy_network()
    held_out = part[0][:40], part[1][:40]
    network.register_forward_pre_hook(lambda module, images: modes.append((module.training, len(images[0]))))
    state = train(CONFIG, part, network=network, held_out=held_out)
    assert [training for training, count in modes if count == 20] == [True] * 10
    assert [training for training, count in modes if count == 40] == [False] * 2
    predictions = network.eval()(held_out[0]).argmax(1)
    assert state.history[-1].validation_error == float((predictions != held_out[1]).double().mean())


def test_plain_error_restores_the_mode_of_every_module(part):
    network = noisy_network().train()
    network[1].eval()  # frozen batch normalization
    loop.plain_error(network, *part)
    assert [module.training for module in network] == [True, False, True, True, True, True]


def test_the_history_has_the_loss_and_the_plain_error_on_held_out_images(part, digits):
    held_out = digits[0][500:560], digits[1][500:560]
    state = train(CONFIG, part, held_out=held_out)
    with torch.no_grad():
        wrong = int((state.network(held_out[0]).argmax(1) != held_out[1]).sum())
    assert [epoch.epoch for epoch in state.history] == [1, 2]
    assert state.history[-1].validation_error == wrong / 60
    assert state.history[0].loss == pytest.approx(2.4, abs=0.5)
    assert state.history[0].seconds <= state.history[1].seconds


@pytest.mark.parametrize(("optimizer", "learning_rate", "epochs"), [("sgd", 0.03, 20), ("muon", 0.02, 8)])
def test_training_lowers_the_loss(part, optimizer, learning_rate, epochs):
    config = replace(CONFIG, optimizer=optimizer, learning_rate=learning_rate, epochs=epochs, weight_decay=0.0)
    state = train(config, part)
    assert state.history[-1].loss < 0.7 * state.history[0].loss


def test_a_training_that_diverges_is_an_error(part):
    with pytest.raises(apac.TrainingError, match=r"diverged in step .* with a learning_rate below 1e\+06"):
        train(replace(CONFIG, learning_rate=1e6), part)


def test_the_number_of_threads_and_the_default_dtype_are_unchanged(part):
    before = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()
    train(replace(CONFIG, epochs=1), part, network=nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), prefetch=True)
    assert (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()) == before
