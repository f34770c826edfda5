"""What a worker_pool promises: order, one torch thread each, and no trace of itself."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
import torch

from apac.inference.workers import WorkerPool, worker_pool


@pytest.fixture(params=[2, 3])
def count(request: pytest.FixtureRequest) -> Iterator[int]:
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


def in_a_new_thread(function):
    said = []
    thread = threading.Thread(target=lambda: said.append(function()))
    thread.start()
    thread.join()
    return said[0]


def test_results_come_in_the_order_of_the_items(count):
    def work(i: int) -> int:
        time.sleep(0.002 * (i % 3))
        return i * i

    with worker_pool() as threads:
        assert list(threads.map(work, range(20))) == [i * i for i in range(20)]
        assert list(threads.map(work, iter([3]))) == [9]
        assert list(threads.map(work, [])) == []
        assert list(threads.map(lambda item: item, [None, None, 1, None])) == [None, None, 1, None]


def test_as_many_threads_work_at_once_as_torch_may_use(count):
    at_once = threading.Barrier(count)

    def work(i: int) -> int:
        at_once.wait(timeout=10)  # broken unless all are here
        return threading.get_ident()

    with worker_pool() as threads:
        assert threads.count == count
        used = list(threads.map(work, range(2 * count)))
    assert len(set(used)) == count
    assert threading.get_ident() not in used


def test_there_are_never_more_threads_than_torch_may_use(count):
    with worker_pool() as threads:
        used = list(threads.map(lambda i: time.sleep(0.001) or threading.get_ident(), range(30)))
    assert len(set(used)) <= count


def test_where_torch_may_use_one_thread_the_calling_thread_works():
    with worker_pool() as threads:
        assert threads.count == 1
        assert set(threads.map(lambda i: threading.get_ident(), range(5))) == {threading.get_ident()}


def test_each_thread_has_one_torch_thread_and_so_has_the_caller_for_the_while(count):
    with worker_pool() as threads:
        assert torch.get_num_threads() == 1
        assert list(threads.map(lambda i: torch.get_num_threads(), range(4 * count))) == [1] * 4 * count


def test_a_crew_within_a_crew_stays_in_its_thread(count):
    def outer(i: int) -> bool:
        with worker_pool() as inner:
            used = set(inner.map(lambda j: threading.get_ident(), range(4)))
            return inner.count == 1 and used == {threading.get_ident()} and torch.get_num_threads() == 1

    with worker_pool() as threads:
        assert all(list(threads.map(outer, range(8))))
        with worker_pool() as again:
            assert again.count == 1


def test_torch_has_as_many_threads_afterwards_as_before_here_and_in_threads_to_come(count):
    for _ in range(2):
        with worker_pool() as threads:
            list(threads.map(torch.zeros, range(8)))
        assert torch.get_num_threads() == count
        assert in_a_new_thread(torch.get_num_threads) == count


def test_torch_has_as_many_threads_after_an_error_as_before(count):
    with pytest.raises(ZeroDivisionError), worker_pool() as threads:
        list(threads.map(lambda i: 1 // i, [1, 0, 1]))
    assert torch.get_num_threads() == count
    assert in_a_new_thread(torch.get_num_threads) == count
    with pytest.raises(KeyError), worker_pool():
        raise KeyError
    assert torch.get_num_threads() == count


def test_a_change_of_torchs_threads_changes_the_next_crew():
    try:
        for count in (2, 3, 1, 2):
            torch.set_num_threads(count)
            with worker_pool() as threads:
                assert threads.count == count
                assert list(threads.map(lambda i: torch.get_num_threads(), range(6))) == [1] * 6
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("failing", [0, 1, 5])
def test_the_error_of_an_item_is_raised_and_nobody_begins_another(failing, count):
    begun = []
    together = threading.Barrier(count)

    def work(i: int) -> None:
        begun.append(i)
        if i < count:
            together.wait(timeout=10)  # the first items are in different threads
        if i == failing:
            raise ValueError(f"item {i}")
        time.sleep(0.01)

    with worker_pool() as threads, pytest.raises(ValueError, match=f"item {failing}"):
        list(threads.map(work, range(40)))
    time.sleep(0.05)
    # what was under way when it failed, and at most one more for each of the others, that was just beginning
    assert len(begun) <= failing + 2 * count


def test_the_crew_works_on_after_an_error(count):
    with worker_pool() as threads:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                list(threads.map(lambda i: 1 // i, [0] * 10))
            assert list(threads.map(lambda i: i, range(10))) == list(range(10))


def test_no_gradients_are_recorded(count):
    leaf = torch.ones(3, requires_grad=True)
    with worker_pool() as threads:
        assert not (leaf * 2).requires_grad
        assert not any(list(threads.map(lambda i: (leaf * i).requires_grad, range(10))))
    assert (leaf * 2).requires_grad
    torch.set_num_threads(1)
    with worker_pool() as threads:
        assert not any(list(threads.map(lambda i: (leaf * i).requires_grad, range(2))))


def test_two_threads_may_have_a_crew_at_the_same_time(count):
    begin = threading.Barrier(2)

    def run(offset: int) -> tuple[bool, int]:
        torch.set_num_threads(count)
        right = torch.get_num_threads() == count  # torch settles what a thread has when it is first asked
        for _ in range(20):
            begin.wait(timeout=10)
            with worker_pool() as threads:
                right &= list(threads.map(lambda i: i + offset, range(20))) == [i + offset for i in range(20)]
        return right, torch.get_num_threads()

    said = []
    both = [threading.Thread(target=lambda offset=offset: said.append(run(offset))) for offset in (0, 1000)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert said == [(True, count)] * 2


def test_a_crew_of_one_needs_no_pool():
    assert list(WorkerPool().map(lambda i: threading.get_ident(), range(3))) == [threading.get_ident()] * 3


def test_a_forked_process_has_a_crew_of_its_own():
    code = """if True:
        import os, threading, torch
        from apac.inference.workers import worker_pool
        torch.set_num_threads(2)

        def once():
            met = threading.Barrier(2)
            with worker_pool() as threads:
                return list(threads.map(lambda i: (met.wait(timeout=20), i * i)[1], range(4))), threads.count

        before = once()
        child = os.fork()
        if child == 0:
            os._exit(0 if once() == before and torch.get_num_threads() == 2 else 1)
        print(before, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), once() == before)
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split("\n")[0] == "([0, 1, 4, 9], 2) 0 True"


def test_nobody_is_left_at_work_when_a_crew_is_left_early():
    torch.set_num_threads(2)
    try:
        busy: list[int] = []

        def work(i: int) -> int:
            busy.append(i)
            time.sleep(0.02)
            busy.remove(i)
            return i

        with worker_pool() as threads, closing(threads.map(work, range(20))) as results:
            assert next(results) == 0
        assert not busy
    finally:
        torch.set_num_threads(1)
