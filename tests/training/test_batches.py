"""Batches made ahead are the batches made in turn."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import apac
from apac.training import loop
from apac.training.batches import batches
from apac.training.config import TrainConfig

CONFIG = TrainConfig("mnist-5k", "cnn", epochs=2, batch=20, rate=0.03, seed=4)

either_way = pytest.mark.parametrize("ahead", [True, False], ids=["ahead", "in turn"])


@pytest.fixture
def part(digits: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return digits[0][:90], digits[1][:90]


@either_way
@pytest.mark.parametrize(("start", "stop"), [(0, 9), (4, 9), (3, 4)])
def test_batches_come_in_the_order_of_the_steps_each_made_once(start, stop, ahead):
    made = []

    def make(step: int) -> int:
        time.sleep(0.002 * (step % 2))
        made.append(step)
        return step * step

    assert list(batches(make, start, stop, ahead=ahead)) == [step * step for step in range(start, stop)]
    assert made == list(range(start, stop))


@either_way
@pytest.mark.parametrize("start", [5, 6])
def test_where_no_step_is_left_nothing_is_made(start, ahead):
    made = []
    assert list(batches(made.append, start, 5, ahead=ahead)) == []
    assert made == []


def test_ahead_the_next_batch_is_made_by_another_thread_while_one_is_in_use():
    made = {step: threading.Event() for step in range(4)}
    makers = set()

    def make(step: int) -> int:
        makers.add(threading.get_ident())
        made[step].set()
        return step

    for step in batches(make, 0, 4, ahead=True):
        if step < 3:
            assert made[step + 1].wait(timeout=10)
            time.sleep(0.01)
        assert not any(made[later].is_set() for later in range(step + 2, 4))
    assert len(makers) == 1
    assert threading.get_ident() not in makers


def test_in_turn_a_batch_is_made_when_it_is_asked_for_by_the_calling_thread():
    made = []
    steps = batches(lambda step: made.append(threading.get_ident()), 0, 4, ahead=False)
    for count in range(1, 5):
        next(steps)
        assert made == [threading.get_ident()] * count


@pytest.mark.parametrize("count", [1, 2])
def test_the_maker_has_one_torch_thread_and_the_others_have_theirs(count):
    said = []
    torch.set_num_threads(count)
    try:
        for inside in batches(lambda step: torch.get_num_threads(), 0, 3, ahead=True):
            assert inside == 1
            assert torch.get_num_threads() == count
        late = threading.Thread(target=lambda: said.append(torch.get_num_threads()))
        late.start()
        late.join()
        assert said == [torch.get_num_threads()] == [count]
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize(("cores", "threads", "ahead"), [(2, 1, True), (2, 2, False), (1, 1, False)])
def test_without_a_choice_batches_are_made_ahead_where_a_core_is_free(cores, threads, ahead, monkeypatch):
    monkeypatch.setattr("apac.training.batches._cores", lambda: cores)
    torch.set_num_threads(threads)
    try:
        (maker,) = batches(lambda step: threading.get_ident(), 0, 1)
    finally:
        torch.set_num_threads(1)
    assert (maker != threading.get_ident()) == ahead


@either_way
def test_an_error_in_making_a_batch_is_raised_at_its_turn(ahead):
    used = []

    def make(step: int) -> int:
        if step == 2:
            raise ValueError("no batch 2")
        return step

    with pytest.raises(ValueError, match="no batch 2"):
        for step in batches(make, 0, 9, ahead=ahead):
            used.append(step)
    assert used == [0, 1]


@either_way
def test_who_stops_early_has_nothing_made_any_more_and_no_thread_left(ahead):
    made = []
    before = threading.active_count()
    steps = batches(lambda step: made.append(step) or step, 0, 1000, ahead=ahead)
    assert [next(steps), next(steps)] == [0, 1]
    steps.close()
    count = len(made)
    assert count <= 3
    assert threading.active_count() == before
    time.sleep(0.02)
    assert len(made) == count


def train(part: tuple[Tensor, Tensor], config: TrainConfig, ahead: bool | None, **options) -> loop.State:
    state = loop.begin(config)
    loop.advance(state, config, *part, (part[0][:10], part[1][:10]), ahead=ahead, **options)
    return state


PER_CLASS = apac.PerClass({1: apac.Compose()}, default=apac.presets.mnist(), classes=10)


@pytest.mark.parametrize("deformation", [apac.presets.mnist(), PER_CLASS], ids=["indistinctive", "distinctive"])
def test_a_training_ahead_has_the_same_weights_and_history_to_the_last_bit(part, deformation):
    config = replace(CONFIG, deformation=deformation, average=0.9)
    one, other, default = (train(part, config, ahead) for ahead in (True, False, None))
    for state in (other, default):
        for a, b in zip(one.network.parameters(), state.network.parameters(), strict=True):
            assert torch.equal(a, b)
        for a, b in zip(one.result.parameters(), state.result.parameters(), strict=True):
            assert torch.equal(a, b)
        assert [replace(e, seconds=0) for e in one.history] == [replace(e, seconds=0) for e in state.history]


def test_a_training_ahead_that_is_stopped_goes_on_to_the_same_weights(part):
    class Stop(Exception):
        pass

    def stop_at_3(state: loop.State) -> None:
        if state.step == 3:
            raise Stop

    state = loop.begin(CONFIG)
    held = part[0][:10], part[1][:10]
    with pytest.raises(Stop):
        loop.advance(state, CONFIG, *part, held, after_step=stop_at_3, ahead=True)
    loop.advance(state, CONFIG, *part, held, ahead=True)
    whole = train(part, CONFIG, ahead=False)
    assert state.step == whole.step == 10
    for a, b in zip(state.network.parameters(), whole.network.parameters(), strict=True):
        assert torch.equal(a, b)
