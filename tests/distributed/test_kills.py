"""Ranks that are killed at random, and ranks of torchrun (scripts/test -m slow)."""

from __future__ import annotations

import csv
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from apac.distributed.deciding import decide_files
from apac.distributed.merge import merge_parts
from file_jobs import file_classifier, merged, write_images

pytestmark = pytest.mark.slow

ROUNDS, FILES, PART = int(os.environ.get("APAC_KILL_ROUNDS", "50")), 5_000, 100


def start(images: Path, out: Path, rank: int, ranks: int) -> int:
    """Start a rank. A fork of this process, which has one thread, need not import torch again."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        decide_files(file_classifier(), [str(images)], out, part_size=PART, rank=rank, ranks=ranks)
        status = 0
    finally:
        os._exit(status)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_every_image_is_decided_exactly_once_however_many_ranks_are_killed(tmp_path):
    images = write_images(tmp_path / "images", FILES)
    whole = merged(file_classifier(), images, tmp_path / "whole", part_size=PART)
    assert len({row["image"] for row in csv.DictReader(whole.decode().splitlines())}) == FILES
    kills = 0
    for round_number in range(ROUNDS):
        chance = random.Random(round_number)
        out, ranks = tmp_path / f"{round_number}", chance.choice((1, 2, 3, 5))
        running = {start(images, out, rank, ranks): rank for rank in range(ranks)}
        to_kill = chance.randint(1, 6)
        while running:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child:
                rank = running.pop(child)
                if os.waitstatus_to_exitcode(status):
                    running[start(images, out, rank, ranks)] = rank
            elif to_kill and chance.random() < 0.05:
                os.kill(chance.choice(list(running)), signal.SIGKILL)
                to_kill, kills = to_kill - 1, kills + 1
            else:
                time.sleep(0.01)
        merge_parts(out, tmp_path / "round.csv")
        assert (tmp_path / "round.csv").read_bytes() == whole, f"round {round_number} with {ranks} ranks"
        assert not (out / "claims").exists() or not list((out / "claims").iterdir())
    print(f"{ROUNDS} rounds, {kills} kills: all equal")
    assert kills >= ROUNDS


def test_torchrun_gives_the_file_of_one_process(tmp_path):
    images = write_images(tmp_path / "images", 60)
    options = ["classify", "cifar10-cnn", str(images), "--passes", "4", "--part-size", "7", "--out"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    contents = []
    for ranks in ("1", "2"):
        out = tmp_path / ranks
        subprocess.run([*torchrun, ranks, "-m", "apac", *options, str(out)], check=True, env=environment)
        merge_parts(out, tmp_path / f"{ranks}.csv")
        contents.append((tmp_path / f"{ranks}.csv").read_bytes())
    subprocess.run([sys.executable, "-m", "apac", *options, str(tmp_path / "0")], check=True, env=environment)
    merge_parts(tmp_path / "0", tmp_path / "0.csv")
    assert contents == [(tmp_path / "0.csv").read_bytes()] * 2
