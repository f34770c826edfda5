"""Mutated files are read, or refused in one sentence; so is every input that failed once."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from fuzz.check import FOUND, failure
from fuzz.targets import NAMES, Target, targets

INPUTS = 30  # of each target; scripts/fuzz tries more


@pytest.fixture(scope="module")
def all_targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    pytest.importorskip("onnxruntime")
    return targets(tmp_path_factory.mktemp("fuzz"))


def test_every_target_is_listed(all_targets):
    assert tuple(all_targets) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_seeds_are_read(name, all_targets):
    for seed in all_targets[name].seeds:
        all_targets[name].load(seed)


@pytest.mark.parametrize("name", NAMES)
def test_a_mutated_file_is_read_or_refused(name, all_targets):
    random = Random(0)
    for _ in range(INPUTS):
        data = all_targets[name].mutate(random.choice(all_targets[name].seeds), random)
        assert failure(all_targets[name], data) is None


@pytest.mark.parametrize("path", sorted(FOUND.iterdir()), ids=lambda path: path.name)
def test_an_input_that_failed_once_is_treated_right(path: Path, all_targets):
    assert failure(all_targets[path.name.rpartition("-")[0]], path.read_bytes()) is None
