"""Decisions do not depend on threads and processes that decide at the same time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from threading import Event, Thread
from typing import TypeVar

import pytest
import torch

import apac
from apac.inference.locks import ProcessLock
from apac.inference.workers import torch_threads

Result = TypeVar("Result")


def images(count: int = 12) -> torch.Tensor:
    return torch.linspace(0, 1, count * 28 * 28).sin().abs().view(count, 1, 28, 28)


def decide(count: int = 12) -> tuple[list[int], list[list[float]]]:
    decision = apac.load("mnist-cnn").classifier(apac.FixedPasses(8), paper_rule=True).decide(images(count))
    return decision.labels.tolist(), decision.log_scores.tolist()


def check_same(result: tuple[list[int], list[list[float]]], expected: tuple[list[int], list[list[float]]]) -> None:
    assert result[0] == expected[0]
    # A matrix product of another size is summed in another order, which moves a logit by up to 1e-4.
    torch.testing.assert_close(torch.tensor(result[1]), torch.tensor(expected[1]), atol=2e-4, rtol=0)


@pytest.fixture(scope="module")
def expected() -> tuple[list[int], list[list[float]]]:
    return decide()


COUNTS = (1, 2, 8)  # of torch threads; with more than one, the callers share a pool of workers


def with_torch_threads(count: int, function: Callable[[], Result]) -> Result:
    with torch_threads(count):
        return function()


@pytest.mark.parametrize("count", COUNTS)
def test_two_threads_decide_at_the_same_time(count, expected):
    with ThreadPoolExecutor(2) as pool:
        for result in pool.map(with_torch_threads, [count] * 4, [decide] * 4):
            check_same(result, expected)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("rule", [apac.FixedPasses(8), apac.Certified(limit=64)], ids=["fixed", "certified"])
def test_two_threads_share_a_classifier(count, rule):
    classifier = apac.load("mnist-cnn").classifier(rule, paper_rule=True)
    alone = classifier.decide(images())
    with ThreadPoolExecutor(2) as pool:
        for decision in pool.map(with_torch_threads, [count] * 4, [partial(classifier.decide, images())] * 4):
            assert decision.stopped == alone.stopped and decision.passes.tolist() == alone.passes.tolist()
            check_same(
                (decision.labels.tolist(), decision.log_scores.tolist()),
                (alone.labels.tolist(), alone.log_scores.tolist()),
            )


@pytest.mark.parametrize("count", COUNTS)
def test_the_number_of_torch_threads_does_not_matter(count, expected):
    with torch_threads(count):
        check_same(decide(), expected)


@pytest.fixture
def processes() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.slow
def test_spawned_processes_decide(processes, expected):
    for result in processes.map(decide, [12] * 2):
        check_same(result, expected)


FORKED = """
import os, sys, threading, time, torch, apac
torch.set_num_threads(int(sys.argv[1]))
images = torch.linspace(0, 1, 12 * 28 * 28).sin().abs().view(12, 1, 28, 28)
decide = lambda: apac.load("mnist-cnn").classifier(apac.FixedPasses(8), paper_rule=True).decide(images).labels.tolist()
before = decide()
if sys.argv[2] == "busy":  # another thread decides, and may hold any lock
    threading.Thread(target=lambda: [decide() for _ in range(1000)], daemon=True).start()
    time.sleep(0.3)
child = os.fork()
if child == 0:
    os._exit(0 if decide() == before else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
os._exit(status)  # without waiting for the other thread
"""


@pytest.mark.parametrize("parent", ["idle", "busy"])
@pytest.mark.parametrize("count", [2, 8])
def test_a_forked_process_decides(count, parent):
    # Threads that stayed in the parent would let the child wait forever.
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED, str(count), parent], check=True, timeout=120)


def test_a_lock_that_another_thread_holds_is_free_in_a_forked_process():
    lock, held, ended = ProcessLock(), Event(), Event()

    def hold() -> None:
        with lock:
            held.set()
            ended.wait()

    holder = Thread(target=hold)
    holder.start()
    held.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:
        signal.alarm(10)
        with lock:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    ended.set()
    holder.join()
