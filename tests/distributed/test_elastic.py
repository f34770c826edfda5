"""Ranks that die: torchrun restarts them, and the weights are those of the undisturbed training.

The variable APAC_ROUNDS is the number of trainings with random kills, by default 20.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import apac
from apac.distributed.merge import merge_parts
from file_jobs import write_images
from hosts import free_port, host, kill_host, ranks_of, succeeds, torchrun, wait_until

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("APAC_ROUNDS", "20"))
TRAIN = [Path(__file__).parent.parent / "elastic.py", "train", "--data", "mnist-5k", "--epochs", 4, "--out"]
# The same ranks add the same numbers in the same order. Another number of ranks adds them in another order, which
# training amplifies: in four epochs to 0.1 of a weight. In one epoch with a small learning rate it is 1e-5, and a step
# moves the weights by 4e-4.
SAME_RANKS = 1e-6
OTHER_RANKS = 1e-4
GENTLE = ("--learning-rate", 0.001, "--epochs", 1)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apac.Run]:
    folder = tmp_path_factory.mktemp("elastic")
    log = folder / "log"
    assert succeeds(log, torchrun(log, "--standalone", "--nproc-per-node", 2, *TRAIN, folder / "run"))
    yield apac.load(folder / "run")


def largest_difference(run: apac.Run, other: apac.Run) -> float:
    pairs = zip(run.network.state_dict().values(), other.network.state_dict().values(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_training_whose_ranks_are_killed_gives_the_same_weights(number, undisturbed, tmp_path):
    out, log, chance = tmp_path / "run", tmp_path / "log", random.Random(number)
    agent = torchrun(log, "--standalone", "--nproc-per-node", 2, "--max-restarts", 9, *TRAIN, out)
    killed = 0
    for _ in range(chance.randint(1, 2)):
        wait_until((out / "checkpoint.safetensors").exists, agent)
        time.sleep(chance.uniform(0, 2))
        victims = ranks_of(agent)
        if victims and agent.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(chance.choice(victims), signal.SIGKILL)
                killed += 1
            time.sleep(1)
    assert succeeds(log, agent)
    assert killed
    assert largest_difference(apac.load(out), undisturbed) <= SAME_RANKS


def test_a_training_continues_on_another_number_of_ranks(tmp_path):
    log = tmp_path / "log"

    def train(out: Path, ranks: int, *options: object) -> subprocess.Popen[bytes]:
        return torchrun(log, "--standalone", "--nproc-per-node", ranks, *TRAIN, out, *GENTLE, *options)

    assert succeeds(log, train(tmp_path / "undisturbed", 2))
    agent = train(tmp_path / "run", 2)
    wait_until((tmp_path / "run" / "checkpoint.safetensors").exists, agent)
    kill_host(agent)
    assert not (tmp_path / "run" / "weights.safetensors").exists()
    shutil.copytree(tmp_path / "run", tmp_path / "3")
    for ranks, options in ((1, ["--resume"]), (3, [])):  # one rank is a process like any other
        out = tmp_path / ("run" if ranks == 1 else "3")
        assert succeeds(log, train(out, ranks, *options))
        difference = largest_difference(apac.load(out), apac.load(tmp_path / "undisturbed"))
        print(f"largest difference after a restart with {ranks} ranks: {difference:.2g}")
        assert difference <= OTHER_RANKS


def test_two_hosts_train_of_which_one_is_killed_and_comes_back(undisturbed, tmp_path):
    out, log, port = tmp_path / "run", tmp_path / "log", free_port()
    first, second = (host(log, port, *TRAIN, out, first=holds) for holds in (True, False))
    wait_until((out / "checkpoint.safetensors").exists, first)
    kill_host(second)
    assert not (out / "weights.safetensors").exists()
    assert succeeds(log, first, host(log, port, *TRAIN, out, first=False))
    assert largest_difference(apac.load(out), undisturbed) <= SAME_RANKS
    assert apac.load(out).history[-1].loss == pytest.approx(undisturbed.history[-1].loss, rel=1e-6)


def test_two_hosts_decide_of_which_one_is_killed(tmp_path):
    images = write_images(tmp_path / "images", 160)
    options = ["-m", "apac", "classify", "cifar10-cnn", images, "--passes", 64, "--part-size", 4, "--out"]
    log, out, alone, port = tmp_path / "log", tmp_path / "out", tmp_path / "alone", free_port()
    assert succeeds(log, torchrun(log, "--standalone", "--nproc-per-node", 1, *options, alone))
    first, second = (host(log, port, *options, out, first=holds) for holds in (True, False))
    wait_until(lambda: len(list(out.glob("parts/*.csv"))) >= 4, first)
    kill_host(second)
    assert len(list(out.glob("parts/*.csv"))) < 40
    again = host(log, port, *options, out, first=False)
    try:
        assert succeeds(log, first)  # it may be done before the other one has joined again
    finally:
        kill_host(again)
    for folder in (alone, out):
        merge_parts(folder, folder.with_suffix(".csv"))
    assert out.with_suffix(".csv").read_bytes() == alone.with_suffix(".csv").read_bytes()
