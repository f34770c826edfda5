"""The training loop on deformed data (paper, section 2 and Training details)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from apac.data.base import scale_pixels
from apac.data.mapped import StoredImages, part_size, take
from apac.deform.base import Deformation
from apac.distributed.ranks.gradients import GradientSum
from apac.distributed.ranks.group import Group, agreed
from apac.distributed.ranks.layers import whole_batches
from apac.errors import InputError, TrainingError
from apac.inference.engine import evaluating
from apac.inference.memory import keep_freed_blocks
from apac.models.tied import untied
from apac.progress import Progress, no_progress
from apac.randomness import seeded_torch
from apac.training.config import TrainConfig
from apac.training.optimizer import make_optimizer
from apac.training.pooled_convolution import forward
from apac.training.precision import autocast
from apac.training.virtual_samples import virtual_samples
from apac.validation import MAX_INTEGER, quoted

CPU = torch.device("cpu")
ALONE = Group()
DECAY = 0.9993  # of the learning rate per epoch, in the paper's schedule


@dataclass(frozen=True)
class EpochRecord:
    """One epoch in the history of a training."""

    epoch: int  # counted from 1
    learning_rate: float  # of its last step
    loss: float  # mean over its virtual samples
    validation_error: float | None  # of the plain prediction on the held-out images; None if there are none
    seconds: float  # training time so far, without interruptions

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(payload: dict[str, Any]) -> EpochRecord:
        """Return the record that `to_json` described. Raises TypeError or ValueError if it is damaged."""
        record = EpochRecord(**payload)
        numbers = [value for name, value in payload.items() if value is not None or name != "validation_error"]
        if not all(isinstance(number, int | float) and abs(number) <= MAX_INTEGER for number in numbers):
            raise ValueError(f"a record of an epoch has numbers, got {quoted(payload)}")
        return record


@dataclass
class TrainingState:
    """Everything that changes during training; a checkpoint stores it."""

    network: nn.Module
    averaged: AveragedModel | None  # the exponential moving average of the weights
    optimizer: torch.optim.Optimizer
    tied: bool = False  # the network is an MLP that still shares weights
    step: int = 0
    loss_sum: float = 0.0  # over the steps of the current epoch
    seconds: float = 0.0
    history: list[EpochRecord] = field(default_factory=list)

    @property
    def result(self) -> nn.Module:
        """The network that training returns."""
        return self.network if self.averaged is None else self.averaged.module


def init_state(network: nn.Module, config: TrainConfig, *, tied: bool = False) -> TrainingState:
    """Return the state before the first step. The configuration must be resolved."""
    return TrainingState(network, _average(network, config), make_optimizer(network, config), tied)


def run_epochs(
    state: TrainingState,
    config: TrainConfig,
    deformation: Deformation,
    images: Tensor | StoredImages,
    labels: Tensor,
    held_out: tuple[Tensor | StoredImages, Tensor],
    *,
    standardize: Callable[[Tensor], Tensor] = lambda images: images,
    weights: Tensor | None = None,
    after_step: Callable[[TrainingState], None] = lambda state: None,
    progress: Progress = no_progress,
    prefetch: bool | None = None,
    device: torch.device = CPU,
    gradients: GradientSum | None = None,
) -> None:
    """Train from the current state to the last epoch, on images (N, C, H, W) with labels (N,) int64.

    uint8 pixels are scaled to 0 … 1, a batch at a time. `standardize` converts deformed images to network inputs.
    With `config.replacement`, images are drawn with probabilities proportional to `weights` (N,) if given, so that the
    expected loss is the weighted one. `after_step` is called after each complete step. It may save the state, or raise
    an exception to stop. `prefetch` prepares the next batch during a step, see `batches`; the result is the same.

    The network is on `device`. The images stay on the CPU, where they are deformed, so that the virtual samples are the
    same on all devices; each batch is moved.

    Modules such as dropout draw from torch's global generator. Each step seeds it with the step number, so that resumed
    training is reproducible, and restores it afterwards.

    With `gradients` of several ranks, each of them has its share of the rows of every batch, and the weights are those
    of a single process but for rounding.
    """
    keep_freed_blocks()
    gradients = gradients or GradientSum()
    ranks = gradients.group
    steps = math.ceil(len(images) / config.batch_size)  # per epoch of N virtual samples
    total = steps * config.epochs
    if state.step > total:
        raise InputError(f"the checkpoint is of a step after the last one, {total:,}; start again with overwrite=True.")
    started = time.monotonic() - state.seconds
    cumulative_weights = None if weights is None else weights.double().cumsum(0)
    # With freeze, the fixed layers run in evaluation mode, as they do after training.
    state.network.train(not config.freeze)
    if device.type != "cpu" and prefetch is None:
        prefetch = True  # the CPU is idle during a step

    def inputs(images: Tensor) -> Tensor:
        return standardize(deformation.preprocess(scale_pixels(images))).to(device)

    # Not a variable: the frame of an exception would keep the workers.
    for virtual, targets in virtual_samples(
        config,
        deformation,
        standardize,
        images,
        labels,
        cumulative_weights,
        ranks,
        range(state.step, total),
        prefetch=prefetch,
    ):
        if state.tied and state.step >= steps * tied_epochs(config):
            untie(state, config, images.shape[1:])
        learning_rate = learning_rate_at(config, state.step, steps)
        for group in state.optimizer.param_groups:
            group["lr"] = learning_rate

        with (
            seeded_torch(config.seed, "network", state.step, device),
            whole_batches(state.network, ranks, config.batch_size),
        ):
            with autocast(config.precision, device):
                logits = forward(state.network, virtual.to(device))
            if config.precision != "float32":
                logits = logits.float()
            loss = functional.cross_entropy(logits, targets.to(device), label_smoothing=config.label_smoothing)
            share = gradients.share(len(targets), config.batch_size, loss)
            state.optimizer.zero_grad()
            loss.backward(share)
        batch_loss = gradients(state.network, loss, share)
        state.optimizer.step()
        state.step += 1
        if state.averaged is not None:
            state.averaged.update_parameters(state.network)

        state.loss_sum += batch_loss.item()
        state.seconds = time.monotonic() - started
        if not math.isfinite(state.loss_sum):
            raise agreed(
                TrainingError(
                    f"training diverged in step {state.step}: the loss is not finite. Start again with a "
                    f"learning_rate below {config.learning_rate:g}."
                )
            )
        end_of_epoch = state.step % steps == 0
        if end_of_epoch:
            error = plain_error(state.result, *held_out, inputs=inputs, group=ranks) if len(held_out[0]) else None
            state.seconds = time.monotonic() - started
            mean_loss = state.loss_sum / steps
            state.history.append(EpochRecord(state.step // steps, learning_rate, mean_loss, error, state.seconds))
        progress("training", state.step * config.batch_size, total * config.batch_size, _note(state, config, steps))
        if end_of_epoch:
            state.loss_sum = 0.0
        after_step(state)


def learning_rate_at(config: TrainConfig, step: int, steps: int) -> float:
    """Return the learning rate of a step, with `steps` steps per epoch."""
    assert config.learning_rate is not None and config.warmup is not None
    total = steps * config.epochs
    warm = config.warmup * total
    if step < warm:
        return config.learning_rate * (step + 1) / (warm + 1)
    if config.schedule == "exponential":
        return config.learning_rate * DECAY ** (int(step - warm) // steps)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / (total - warm)))


def plain_error(
    network: nn.Module,
    images: Tensor | StoredImages,
    labels: Tensor,
    *,
    inputs: Callable[[Tensor], Tensor] = lambda images: images,
    group: Group = ALONE,
) -> float:
    """Return the error of the plain prediction, with the network in evaluation mode.

    `inputs` converts images to network inputs. Each rank of a group evaluates its share of the images.
    """
    own = group.rows(len(images))
    size = part_size(images.shape[1:], 500)
    parts = take(images, own).split(size) if own.start < own.stop else ()  # a rank may have none
    truths = labels[own].split(size) if parts else ()
    with evaluating(network):
        wrong = sum(
            int((network(inputs(part)).argmax(dim=1).cpu() != truth).sum())
            for part, truth in zip(parts, truths, strict=True)
        )
    device = next((parameter.device for parameter in network.parameters()), CPU)
    return int(group.sum_(torch.tensor(wrong, device=device))) / len(labels)


def tied_epochs(config: TrainConfig) -> int:
    """Return the number of initial epochs in which an MLP shares weights."""
    return int(config.tied * config.epochs)


def untie(state: TrainingState, config: TrainConfig, shape: Sequence[int]) -> None:
    """Replace the tied network for images of shape (C, H, W) by the equivalent MLP, and reset the momentum."""
    assert isinstance(state.network, nn.Sequential)
    device = next(state.network.parameters()).device
    network = untied(state.network.cpu(), shape).to(device)
    if state.averaged is not None:
        assert isinstance(state.averaged.module, nn.Sequential)
        averaged = _average(untied(state.averaged.module.cpu(), shape).to(device), config)
        assert averaged is not None
        averaged.n_averaged.copy_(state.averaged.n_averaged)
        state.averaged = averaged
    state.network, state.tied, state.optimizer = network, False, make_optimizer(network, config)


def _average(network: nn.Module, config: TrainConfig) -> AveragedModel | None:
    if not config.ema_decay:
        return None

    def update(averaged: Any, current: Any, count: Any) -> None:
        # A smaller decay at first, so that the initial weights do not dominate the average.
        decay = min(config.ema_decay, (1 + int(count)) / (10 + int(count)))
        get_ema_multi_avg_fn(decay)(averaged, current, count)

    averaged = AveragedModel(network, multi_avg_fn=update, use_buffers=True)
    averaged.n_averaged += 1  # the initial weights are the first term of the average
    return averaged


def _note(state: TrainingState, config: TrainConfig, steps: int) -> str:
    """Describe the current epoch: learning rate, mean loss so far and last validation error."""
    epoch, done = (state.step - 1) // steps + 1, (state.step - 1) % steps + 1
    learning_rate = state.optimizer.param_groups[0]["lr"]
    error = state.history[-1].validation_error if state.history else None
    return f"epoch {epoch}/{config.epochs}, learning rate {learning_rate:.2g}, loss {state.loss_sum / done:.4f}" + (
        "" if error is None else f", validation error {error:.2%}"
    )
