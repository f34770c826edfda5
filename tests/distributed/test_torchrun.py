"""The commands under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import apac

pytestmark = pytest.mark.slow

TRAIN = ["-m", "apac", "train", "--data", "mnist-5k", "--epochs", "1", "--batch-size", "200"]
MAIN = "from apac.cli import main\nmain()\n"


def torchrun(*arguments: object, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        [*command, *map(str, arguments)], env=environment, capture_output=True, text=True, check=False, timeout=600
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("torchrun") / "run"
    done = torchrun(*TRAIN, "--out", out)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("network        mnist-cnn") == 1  # one rank prints
    return out


def test_a_training_leaves_one_complete_run(run):
    assert len(apac.load(run).history) == 1
    assert sorted(path.name for path in run.iterdir()) == ["run.json", "weights.safetensors"]


def test_an_evaluation_has_the_numbers_of_one_process(run, tmp_path):
    one, two = (
        (
            ranks,
            tmp_path / str(ranks),
            torchrun("-m", "apac", "evaluate", run, "--passes", "1,40", "--out", tmp_path / str(ranks), ranks=ranks),
        )
        for ranks in (1, 2)
    )
    payloads = []
    for ranks, folder, done in (one, two):
        assert done.returncode == 0, (ranks, done.stderr)
        payloads.append(json.loads((folder / "evaluation.json").read_text()))
        payloads[-1].pop("seconds")
    assert payloads[0] == payloads[1]


def test_ranks_that_disagree_end_with_the_first_difference(tmp_path):
    script = tmp_path / "other_seed.py"
    script.write_text(f"import os, sys\nsys.argv += ['--seed', os.environ['RANK']]\n{MAIN}")
    done = torchrun(script, *TRAIN[2:], "--out", tmp_path / "run")
    assert done.returncode
    lines = [line for line in done.stderr.splitlines() if line.startswith("apac: ")]
    assert lines == [
        "apac: the ranks disagree: seed is 0 on rank 0 and 1 on rank 1; start all of them with the same command, "
        "version and data."
    ]
    assert done.stderr.count("exitcode  : 2") >= 1
    assert not (tmp_path / "run").exists()


def test_a_rank_without_the_data_ends_all_ranks(tmp_path):
    for number in range(8):
        path = tmp_path / "host 0" / "images" / str(number % 2) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (28, 28), 30 * number).save(path)
    (tmp_path / "host 1").mkdir()
    script = tmp_path / "two_hosts.py"
    script.write_text(f"import os\nos.chdir({str(tmp_path)!r} + '/host ' + os.environ['RANK'])\n{MAIN}")
    done = torchrun(script, "train", "--data", "/proc/self/cwd/images", "--out", tmp_path / "run")
    assert done.returncode
    lines = [line for line in done.stderr.splitlines() if line.startswith("apac: ")]
    assert lines == [
        "apac: on rank 1 of 2, there is no folder /proc/self/cwd/images; give a folder with a subfolder of images "
        "for each class."
    ]
    assert not (tmp_path / "run").exists()
