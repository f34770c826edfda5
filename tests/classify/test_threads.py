"""Decisions do not depend on threads and processes that decide at the same time."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest
import torch

import apac
from apac.inference.workers import torch_threads


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


def test_two_threads_decide_at_the_same_time(expected):
    with ThreadPoolExecutor(2) as pool:
        for result in pool.map(decide, [12] * 4):
            check_same(result, expected)


def test_two_threads_share_a_classifier(expected):
    classifier = apac.load("mnist-cnn").classifier(apac.FixedPasses(8), paper_rule=True)
    with ThreadPoolExecutor(2) as pool:
        for decision in pool.map(classifier.decide, [images()] * 4):
            check_same((decision.labels.tolist(), decision.log_scores.tolist()), expected)


@pytest.mark.parametrize("count", [1, 2, 8])
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
import os, sys, torch, apac
torch.set_num_threads(int(sys.argv[1]))
images = torch.linspace(0, 1, 12 * 28 * 28).sin().abs().view(12, 1, 28, 28)
decide = lambda: apac.load("mnist-cnn").classifier(apac.FixedPasses(8), paper_rule=True).decide(images).labels.tolist()
before = decide()
child = os.fork()
if child == 0:
    os._exit(0 if decide() == before else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("count", [2, 8])
def test_a_forked_process_decides(count):
    # Threads that stayed in the parent would let the child wait forever.
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED, str(count)], check=True, timeout=120)
