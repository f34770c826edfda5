"""The worker pool: results in order, one torch thread per worker, and all settings restored."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TypeVar

import pytest
import torch

from apac.inference.workers import WorkerPool, set_own_torch_threads, torch_threads, worker_pool

Result = TypeVar("Result")


@pytest.fixture
def count() -> Iterator[int]:
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(1)


def in_new_thread(function: Callable[[], Result]) -> Result:
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def test_results_come_in_the_order_of_the_items(count):
    with worker_pool(limit_caller=True) as pool:
        assert list(pool.map(lambda i: i * i, range(50))) == [i * i for i in range(50)]
        assert list(pool.map(lambda i: i * i, iter([3]))) == [9]
        assert list(pool.map(lambda i: i * i, [])) == []
        assert list(pool.map(lambda item: item, [None, None, 1, None])) == [None, None, 1, None]


def test_the_number_of_concurrent_workers_is_the_number_of_torch_threads(count):
    at_once = threading.Barrier(count)

    def work(i: int) -> int:
        at_once.wait(timeout=30)  # fails unless `count` threads are here
        return threading.get_ident()

    with worker_pool(limit_caller=True) as pool:
        assert pool.count == count
        used = list(pool.map(work, range(10 * count)))
    assert len(set(used)) == count
    assert threading.get_ident() not in used


def test_with_one_torch_thread_the_calling_thread_does_the_work():
    with worker_pool(limit_caller=True) as inside:
        for pool in (inside, WorkerPool()):
            assert pool.count == 1
            assert set(pool.map(lambda i: threading.get_ident(), range(5))) == {threading.get_ident()}


def test_each_worker_and_a_limited_caller_have_one_torch_thread(count):
    with worker_pool(limit_caller=True) as pool:
        assert torch.get_num_threads() == 1
        assert list(pool.map(lambda i: torch.get_num_threads(), range(4 * count))) == [1] * 4 * count
    with worker_pool() as pool:
        assert torch.get_num_threads() == count
        assert list(pool.map(lambda i: torch.get_num_threads(), range(4 * count))) == [1] * 4 * count


def test_a_pool_inside_a_worker_stays_in_that_worker(count):
    def outer(i: int) -> bool:
        with worker_pool(limit_caller=True) as inner:
            used = set(inner.map(lambda j: threading.get_ident(), range(4)))
            return inner.count == 1 and used == {threading.get_ident()} and torch.get_num_threads() == 1

    with worker_pool(limit_caller=True) as pool:
        assert all(list(pool.map(outer, range(8))))
        with worker_pool(limit_caller=True) as again:
            assert again.count == 1


def test_the_thread_counts_of_the_caller_and_of_new_threads_are_unchanged_afterwards(count):
    for _ in range(2):
        with worker_pool(limit_caller=True) as pool:
            list(pool.map(torch.zeros, range(8)))
        assert torch.get_num_threads() == count
        assert in_new_thread(torch.get_num_threads) == count


def test_a_thread_that_starts_during_the_block_has_the_default_thread_count(count):
    with worker_pool(limit_caller=True) as pool:
        list(pool.map(torch.zeros, range(8)))
        assert in_new_thread(torch.get_num_threads) == count


def test_the_thread_counts_are_restored_after_an_error(count):
    with pytest.raises(ZeroDivisionError), worker_pool(limit_caller=True) as pool:
        list(pool.map(lambda i: 1 // i, [1, 0, 1]))
    assert torch.get_num_threads() == count
    with pytest.raises(KeyError), worker_pool(limit_caller=True):
        raise KeyError
    assert torch.get_num_threads() == count
    assert in_new_thread(torch.get_num_threads) == count


def test_the_thread_counts_are_restored_when_a_generator_is_abandoned(count):
    def squares() -> Iterator[int]:
        with worker_pool(limit_caller=True) as pool:
            yield from pool.map(lambda i: i * i, range(100))

    generator = squares()
    assert next(generator) == 0
    del generator
    gc.collect()
    assert torch.get_num_threads() == count
    assert in_new_thread(torch.get_num_threads) == count


def test_the_thread_count_of_one_thread_is_set_without_changing_that_of_others(count):
    def own() -> tuple[int, int, int]:
        set_own_torch_threads(2)
        with torch_threads(1):
            inside = torch.get_num_threads()
        with worker_pool(limit_caller=True) as pool:
            list(pool.map(torch.zeros, range(4)))
        return inside, torch.get_num_threads(), pool.count

    assert in_new_thread(own) == (1, 2, 2)
    assert torch.get_num_threads() == count
    assert in_new_thread(torch.get_num_threads) == count


def test_the_default_is_the_current_one_even_if_the_workers_are_from_an_earlier_one(count):
    torch.set_num_threads(2)
    with worker_pool(limit_caller=True) as pool:
        list(pool.map(torch.zeros, range(4)))
    torch.set_num_threads(count)

    def own() -> None:
        set_own_torch_threads(2)
        with worker_pool(limit_caller=True) as pool:
            list(pool.map(torch.zeros, range(4)))

    in_new_thread(own)
    assert in_new_thread(torch.get_num_threads) == count


def test_a_change_of_torchs_thread_count_changes_the_next_pool():
    try:
        for count in (2, 3, 1, 2):
            torch.set_num_threads(count)
            with worker_pool(limit_caller=True) as pool:
                assert pool.count == count
                assert list(pool.map(lambda i: torch.get_num_threads(), range(6))) == [1] * 6
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("failing", [0, 1, 5])
def test_the_error_of_an_item_is_raised_and_few_further_items_start(failing, count):
    started: list[int] = []
    together = threading.Barrier(count)

    def work(i: int) -> None:
        started.append(i)
        if i < count:
            together.wait(timeout=30)  # the first items are in different threads
        if i == failing:
            raise ValueError(f"item {i}")

    with worker_pool(limit_caller=True) as pool:
        with pytest.raises(ValueError, match=f"item {failing}"):
            list(pool.map(work, range(40)))
        # At most 2 · count items are in progress when the caller takes the result that raises.
        assert len(started) <= failing + 2 * count
        assert list(pool.map(lambda i: i, range(10))) == list(range(10))  # the pool can still be used


def test_no_worker_is_running_after_the_results_are_closed_early(count):
    running: list[int] = []

    def work(i: int) -> int:
        running.append(i)
        torch.ones(100_000).sum()
        running.remove(i)
        return i

    with worker_pool(limit_caller=True) as pool, closing(pool.map(work, range(20))) as results:
        assert next(results) == 0
    assert not running


def test_no_gradients_are_recorded(count):
    leaf = torch.ones(3, requires_grad=True)
    for threads in (count, 1):
        torch.set_num_threads(threads)
        with worker_pool(limit_caller=True) as pool:
            assert not (leaf * 2).requires_grad
            assert not any(list(pool.map(lambda i: (leaf * i).requires_grad, range(10))))
    assert (leaf * 2).requires_grad


def test_two_threads_may_use_a_pool_at_the_same_time(count):
    start = threading.Barrier(2)
    results = []

    def run(offset: int) -> None:
        correct = torch.get_num_threads() == count
        for _ in range(10):
            start.wait(timeout=30)
            with worker_pool(limit_caller=True) as pool:
                correct &= list(pool.map(lambda i: i + offset, range(20))) == [i + offset for i in range(20)]
        results.append((correct, torch.get_num_threads()))

    threads = [threading.Thread(target=run, args=(offset,)) for offset in (0, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [(True, count)] * 2


def test_a_forked_process_has_its_own_pool():
    code = """if True:
        import os, threading, torch
        from apac.inference.workers import worker_pool
        torch.set_num_threads(2)

        def once():
            both = threading.Barrier(2)
            with worker_pool(limit_caller=True) as pool:
                return list(pool.map(lambda i: (both.wait(timeout=30), i * i)[1], range(4))), pool.count

        before = once()
        child = os.fork()
        if child == 0:
            threads = torch.get_num_threads()  # one: those of the pool of OpenMP have stayed in the parent
            torch.set_num_threads(2)
            os._exit(0 if (threads, once()) == (1, before) else 1)
        print(before, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), once() == before)
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split("\n")[0] == "([0, 1, 4, 9], 2) 0 True"
