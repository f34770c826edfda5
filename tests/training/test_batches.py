"""Prefetched batches equal batches that are prepared on demand."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import scipy.stats
import torch
from torch import Tensor

import apac
from apac.randomness import generator
from apac.training import loop
from apac.training.batches import batches, draw, shuffled
from small_training import CONFIG, MNIST, fresh, train, weights_of

either_way = pytest.mark.parametrize("prefetch", [True, False], ids=["prefetch", "in turn"])


@pytest.fixture
def part(digits: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return digits[0][:90], digits[1][:90]


@either_way
@pytest.mark.parametrize(("start", "stop"), [(0, 9), (4, 9), (3, 4)])
def test_every_batch_is_prepared_once_in_the_order_of_the_steps(start, stop, prefetch):
    prepared = []

    def make(step: int) -> int:
        prepared.append(step)
        return step * step

    assert list(batches(make, start, stop, prefetch=prefetch)) == [step * step for step in range(start, stop)]
    assert prepared == list(range(start, stop))


@either_way
@pytest.mark.parametrize("start", [5, 6])
def test_no_batch_is_prepared_without_a_step(start, prefetch):
    prepared: list[int] = []
    assert list(batches(prepared.append, start, 5, prefetch=prefetch)) == []
    assert prepared == []


def test_with_prefetch_another_thread_prepares_the_next_batch_while_one_is_in_use():
    prepared = {step: threading.Event() for step in range(4)}
    makers = set()

    def make(step: int) -> int:
        makers.add(threading.get_ident())
        prepared[step].set()
        return step

    for step in batches(make, 0, 4, prefetch=True):
        if step < 3:
            assert prepared[step + 1].wait(timeout=10)
        assert not any(prepared[later].is_set() for later in range(step + 2, 4))
    assert len(makers) == 1
    assert threading.get_ident() not in makers


def test_without_prefetch_the_calling_thread_prepares_a_batch_when_it_is_needed():
    prepared = []
    steps = batches(lambda step: prepared.append(threading.get_ident()), 0, 4, prefetch=False)
    for count in range(1, 5):
        next(steps)
        assert prepared == [threading.get_ident()] * count


@pytest.mark.parametrize("count", [1, 2])
def test_the_prefetching_thread_has_one_torch_thread_and_other_threads_keep_theirs(count):
    counts: list[int] = []
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        for inside in batches(lambda step: torch.get_num_threads(), 0, 3, prefetch=True):
            assert inside == 1
            assert torch.get_num_threads() == count
        late = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
        late.start()
        late.join()
        assert counts == [torch.get_num_threads()] == [count]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("cores", "threads", "prefetch"), [(2, 1, True), (2, 2, False), (1, 1, False)])
def test_by_default_batches_are_prefetched_where_a_core_is_free(cores, threads, prefetch, monkeypatch):
    monkeypatch.setattr("apac.training.batches.cores", lambda: cores)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        (maker,) = batches(lambda step: threading.get_ident(), 0, 1)
    finally:
        torch.set_num_threads(before)
    assert (maker != threading.get_ident()) == prefetch


@either_way
def test_an_error_in_a_batch_is_raised_when_that_batch_is_due(prefetch):
    used = []

    def make(step: int) -> int:
        if step == 2:
            raise ValueError("no batch 2")
        return step

    with pytest.raises(ValueError, match="no batch 2"):
        for step in batches(make, 0, 9, prefetch=prefetch):
            used.append(step)
    assert used == [0, 1]


@either_way
def test_a_caller_that_stops_early_leaves_no_thread_running(prefetch):
    prepared: list[int] = []
    before = threading.active_count()
    steps = batches(prepared.append, 0, 1000, prefetch=prefetch)
    next(steps)
    next(steps)
    steps.close()
    assert len(prepared) <= 3
    assert threading.active_count() == before


PER_CLASS = apac.PerClass({1: apac.Compose()}, default=apac.presets.mnist(), classes=10)


@pytest.mark.parametrize("deformation", [apac.presets.mnist(), PER_CLASS], ids=["indistinctive", "distinctive"])
def test_training_with_prefetch_has_bitwise_the_same_weights_and_history(part, deformation):
    config = replace(CONFIG, ema_decay=0.9)
    held_out = part[0][:10], part[1][:10]
    first, *others = (
        train(config, part, deformation, held_out=held_out, prefetch=prefetch) for prefetch in (True, False, None)
    )
    for state in others:
        assert torch.equal(weights_of(first.network), weights_of(state.network))
        assert torch.equal(weights_of(first.result), weights_of(state.result))
        assert [replace(e, seconds=0) for e in first.history] == [replace(e, seconds=0) for e in state.history]


def test_training_with_prefetch_resumes_to_the_same_weights(part: tuple[Tensor, Tensor]):
    class Stop(Exception):
        pass

    def stop_at_3(state: loop.TrainingState) -> None:
        if state.step == 3:
            raise Stop

    state, none = fresh(CONFIG), (part[0][:0], part[1][:0])
    with pytest.raises(Stop):
        loop.run_epochs(state, CONFIG, MNIST, *part, none, after_step=stop_at_3, prefetch=True)
    loop.run_epochs(state, CONFIG, MNIST, *part, none, prefetch=True)
    whole = train(CONFIG, part, prefetch=False)
    assert state.step == whole.step == 10
    assert torch.equal(weights_of(state.network), weights_of(whole.network))


def test_prefetching_leaves_the_thread_counts_unchanged():
    def default_threads() -> int:
        with ThreadPoolExecutor(1) as new_thread:
            return new_thread.submit(torch.get_num_threads).result()

    before = torch.get_num_threads(), default_threads()
    assert list(batches(lambda step: step, 0, 3, prefetch=True)) == [0, 1, 2]
    assert (torch.get_num_threads(), default_threads()) == before


def test_samples_are_drawn_in_proportion_to_their_weights():
    weights = torch.tensor([0.0, 3.0, 1.0, 0.0, 0.5, 5.5, 0.0])
    index = draw(100_000, 7, weights.double().cumsum(0), generator=generator(0, "test", 0))
    counts = index.bincount(minlength=7).numpy()
    drawn = weights.numpy() > 0
    assert not counts[~drawn].any()
    expected = 100_000 * weights.numpy()[drawn] / weights.sum().item()
    assert scipy.stats.chisquare(counts[drawn], expected).pvalue > 0.001  # the seed is fixed


@pytest.mark.parametrize("batch_size", [1, 7, 10, 25])
def test_shuffled_batches_do_not_depend_on_the_step_at_which_they_start(batch_size):
    steps = list(shuffled(range(12), batch_size, 10, seed=3))
    assert all(len(index) == batch_size for index in steps)
    for start in range(12):
        rest = shuffled(range(start, 12), batch_size, 10, seed=3)
        assert all(torch.equal(index, again) for index, again in zip(steps[start:], rest, strict=True))
    other = torch.cat(list(shuffled(range(12), batch_size, 10, seed=4)))
    assert not torch.equal(torch.cat(steps), other)
