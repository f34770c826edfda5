"""Mutated files are read, or refused in one sentence; so is every input that failed once."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

import pytest
from fuzz.check import FOUND, failure, measured
from fuzz.target import Target
from fuzz.targets import FUZZERS, TARGETS, build

SECONDS = 1.0  # of the processor, for each fuzzer; scripts/fuzz takes longer


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Target]:
    folder = tmp_path_factory.mktemp("fuzz")

    @cache
    def built(name: str) -> Target:
        if name == "onnx":
            pytest.importorskip("onnxruntime")
        return build(name, folder)

    return built


def test_every_target_belongs_to_one_of_seven_fuzzers():
    assert sorted(name for names in FUZZERS.values() for name in names) == sorted(TARGETS)
    assert tuple(FUZZERS) == ("images", "runs", "weights", "onnx", "deformations", "checkpoints", "names")


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_read(name, target):
    for seed in target(name).seeds:
        target(name).load(seed)


@pytest.mark.parametrize("fuzzer", FUZZERS)
def test_a_mutated_file_is_read_or_refused(fuzzer, target):
    targets = [target(name) for name in FUZZERS[fuzzer]]
    random, begin = Random(0), time.process_time()
    while time.process_time() - begin < SECONDS:
        chosen = random.choice(targets)
        data = chosen.mutate(random.choice(chosen.seeds), random)
        assert failure(chosen, data) is None, data[:1000]


@pytest.mark.parametrize("path", sorted(FOUND.iterdir()), ids=lambda path: path.name)
def test_an_input_that_failed_once_is_treated_right(path: Path, target):
    assert measured(target(path.name.rpartition("-")[0]), path.read_bytes()).failure is None
