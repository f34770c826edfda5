"""Ranks that die: torchrun restarts them, and the weights are those of the undisturbed training.

The variable APAC_ROUNDS is the number of trainings with random kills, by default 20.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import apac

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("APAC_ROUNDS", "20"))
COMMAND = [str(Path(__file__).parent.parent / "elastic.py"), "train", "--data", "mnist-5k", "--epochs", "4"]
# The same ranks add the same numbers in the same order; one rank more or less is rounding, which the first steps of a
# training with a large learning rate amplify as they do that of another number of threads.
SAME_RANKS = 1e-6
OTHER_RANKS = 0.05


def torchrun(out: Path, *options: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "torch.distributed.run", *options, *COMMAND, "--out", str(out)]
    with out.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def kill_host(agent: subprocess.Popen[bytes]) -> None:
    """Kill the agent and its ranks, as if the machine had lost its power."""
    for pid in (agent.pid, *children(agent.pid)):
        os.kill(pid, signal.SIGKILL)
    agent.wait()


def wait_for(path: Path, agent: subprocess.Popen[bytes]) -> None:
    while not path.exists() and agent.poll() is None:
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apac.Run]:
    out = tmp_path_factory.mktemp("elastic") / "undisturbed"
    assert torchrun(out, "--standalone", "--nproc-per-node", "2").wait() == 0
    yield apac.load(out)


def largest_difference(run: apac.Run, other: apac.Run) -> float:
    pairs = zip(run.network.state_dict().values(), other.network.state_dict().values(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_training_whose_ranks_are_killed_gives_the_same_weights(number, undisturbed, tmp_path):
    out, chance = tmp_path / "run", random.Random(number)
    agent = torchrun(out, "--standalone", "--nproc-per-node", "2", "--max-restarts", "9")
    for _ in range(chance.randint(1, 2)):
        wait_for(out / "checkpoint.safetensors", agent)
        time.sleep(chance.uniform(0, 3))
        victims = children(agent.pid)
        if victims and agent.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(chance.choice(victims), signal.SIGKILL)
            time.sleep(1)
    assert agent.wait() == 0, out.with_suffix(".log").read_text()[-3000:]
    assert largest_difference(apac.load(out), undisturbed) <= SAME_RANKS


def test_a_training_continues_on_another_number_of_ranks(undisturbed, tmp_path):
    out = tmp_path / "run"
    agent = torchrun(out, "--standalone", "--nproc-per-node", "2")
    wait_for(out / "checkpoint.safetensors", agent)
    kill_host(agent)
    assert torchrun(out, "--standalone", "--nproc-per-node", "3").wait() == 0
    assert largest_difference(apac.load(out), undisturbed) <= OTHER_RANKS


def test_two_hosts_of_which_one_is_killed_and_comes_back(undisturbed, tmp_path):
    out, port = tmp_path / "run", free_port()
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job"]
    options = [
        "--nnodes",
        "2",
        "--nproc-per-node",
        "1",
        "--max-restarts",
        "9",
        "--local-addr",
        "127.0.0.1",
        *rendezvous,
    ]
    first = torchrun(out, *options, "--rdzv-conf", "is_host=true")  # it holds the rendezvous, so the other one dies
    second = torchrun(out, *options, "--rdzv-conf", "is_host=false")
    wait_for(out / "checkpoint.safetensors", first)
    kill_host(second)
    again = torchrun(out, *options, "--rdzv-conf", "is_host=false")
    log = out.with_suffix(".log")
    assert (first.wait(), again.wait()) == (0, 0), log.read_text()[-3000:]
    assert largest_difference(apac.load(out), undisturbed) <= SAME_RANKS
    torch.testing.assert_close(apac.load(out).history[-1].loss, undisturbed.history[-1].loss, rtol=1e-6, atol=0)
