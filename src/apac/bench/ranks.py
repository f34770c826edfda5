"""Training throughput of one process with all cores, and of as many ranks with one thread each.

`python -m apac.bench.ranks NETWORK SECONDS`, alone or by torchrun, prints the samples per second.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress

import torch

from apac import models
from apac.bench import peers
from apac.bench.race import Entry
from apac.distributed.ranks.gradients import GradientSum
from apac.distributed.ranks.group import Group
from apac.errors import InputError
from apac.progress import Progress
from apac.randomness import generator
from apac.runs.presets import PRESETS
from apac.training.config import TrainConfig
from apac.training.loop import TrainingState, init_state, run_epochs

NETWORKS = ("mnist-cnn", "cifar10-cnn")
SECONDS = 3.0  # of one measurement
WARM_UP = 10  # steps
GROUP = "training samples per second on ranks"


def measure(rounds: int, progress: Progress) -> list[Entry]:
    cores = os.cpu_count() or 1
    child = ["-m", "apac.bench.ranks"]
    agent = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(cores)]
    commands = {f"1 process, {cores} threads": (child, cores), f"{cores} ranks, 1 thread each": (agent + child, 1)}
    entries = []
    for network in NETWORKS:
        best = dict.fromkeys(commands, 0.0)
        for number in range(rounds):
            for name, (command, threads) in commands.items():
                best[name] = max(best[name], _run([*command, network, str(SECONDS)], threads))
            progress(f"{GROUP}, {network}", number + 1, rounds)
        first = best[next(iter(best))]
        against = next(iter(best))
        entries += [
            Entry(f"{GROUP}, {network}", name, value, "samples/s", against, first / value)
            for name, value in best.items()
        ]
    return entries


def _run(arguments: list[str], threads: int) -> float:
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"a training on ranks failed: {done.stderr.strip().rpartition(chr(10))[2]}.")
    return float(done.stdout)


def train_for(network: str, seconds: float) -> float:
    """Return the samples per second of all ranks of the current group."""
    group, data = Group.current(), network.partition("-")[0]
    config = TrainConfig(epochs=1_000_000, learning_rate=1e-9).resolve(network, data)
    images, labels = (
        torch.rand(config.batch_size, *peers.SHAPES[data]),
        torch.zeros(config.batch_size, dtype=torch.int64),
    )
    state = init_state(models.build(network, generator=generator(0, "initial weights", 0)), config)
    times: list[float] = []

    def after_step(state: TrainingState) -> None:
        times.append(time.perf_counter())
        if gradients.should_stop():
            raise _TimeIsUp

    def should_stop() -> bool:
        return len(times) > WARM_UP and time.perf_counter() - times[WARM_UP] >= seconds

    gradients = GradientSum(group, should_stop)
    held_out = (images[:0], labels[:0])
    with suppress(_TimeIsUp):
        run_epochs(state, config, PRESETS[data](), images, labels, held_out, after_step=after_step, gradients=gradients)
    return (len(times) - 1 - WARM_UP) * config.batch_size / (times[-1] - times[WARM_UP])


class _TimeIsUp(Exception):
    """Enough steps have been measured."""


if __name__ == "__main__":
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
    speed = train_for(sys.argv[1], float(sys.argv[2]))
    if Group.current().first:
        print(speed)
    if "RANK" in os.environ:
        torch.distributed.destroy_process_group()
