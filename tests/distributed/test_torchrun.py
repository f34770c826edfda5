"""The commands under torchrun."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from PIL import Image

import apac
from file_jobs import write_images
from hosts import SECONDS, ranks_of, succeeds, wait_until
from hosts import torchrun as start

pytestmark = pytest.mark.slow

TRAIN = ["-m", "apac", "train", "--data", "mnist-5k", "--epochs", "1", "--batch-size", "200"]
STANDALONE = ["--standalone", "--nproc-per-node", 2]
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


@pytest.mark.parametrize("option", ["", "--overwrite"])
def test_a_restart_before_the_training_begins_does_not_take_an_old_run_for_its_own(run, option, tmp_path):
    """A run that is refused stays refused, and one that is replaced is replaced, if the first attempt had failed."""
    out = shutil.copytree(run, tmp_path / "run")
    script = tmp_path / "fails_once.py"
    script.write_text(
        "import os\nfrom apac.runs import train\nload = train._load\n"
        "def fail(*arguments, **options):\n"
        "    if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n        os._exit(1)\n"
        f"    return load(*arguments, **options)\ntrain._load = fail\n{MAIN}"
    )
    options = [*TRAIN[2:], "--out", out, *([option] if option else [])]
    done = torchrun("--max-restarts", 1, script, *options)
    trained_again = (out / "weights.safetensors").stat().st_mtime_ns != (run / "weights.safetensors").stat().st_mtime_ns
    if option:
        assert done.returncode == 0, done.stderr
        assert trained_again
    else:
        assert done.returncode
        assert own_lines(done.stderr)[-1].startswith(f"apac: {out} already holds a run")
        assert not trained_again


def test_a_training_leaves_one_complete_run(run):
    assert len(apac.load(run).history) == 1
    # Other tests, which may come first, evaluate it.
    assert {path.name for path in run.iterdir()} - {"scores"} == {"run.json", "weights.safetensors"}


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (("--passes", "1,40"), "evaluation.json"),
        (("--rule", "certified", "--limit", 64, "--against", 40), "certified.json"),
    ],
)
def test_an_evaluation_has_the_numbers_of_one_process(run, tmp_path, options, name):
    one, two = (
        (
            ranks,
            tmp_path / str(ranks),
            torchrun("-m", "apac", "evaluate", run, *options, "--out", tmp_path / str(ranks), ranks=ranks),
        )
        for ranks in (1, 2)
    )
    payloads = []
    for ranks, folder, done in (one, two):
        assert done.returncode == 0, (ranks, done.stderr)
        payloads.append(json.loads((folder / name).read_text()))
        payloads[-1].pop("seconds")
        payloads[-1].get("against", {}).pop("seconds", None)
    assert payloads[0] == payloads[1]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("command", ["train", "classify"])
def test_ranks_that_disagree_end_with_the_first_difference(command, ranks, tmp_path):
    options: dict[str, list[object]] = {
        "train": [*TRAIN[2:]],
        "classify": ["classify", "cifar10-cnn", write_images(tmp_path / "images", 4), "--passes", 2],
    }
    script = tmp_path / "other_seed.py"
    script.write_text(f"import os, sys\nsys.argv += ['--seed', os.environ['RANK']]\n{MAIN}")
    done = torchrun(script, *options[command], "--out", tmp_path / "out", ranks=ranks)
    assert own_lines(done.stderr) == [
        "apac: the ranks disagree: seed is 0 on rank 0 and 1 on rank 1; start all of them with the same command, "
        "version and data."
    ]
    assert done.stderr.count("exitcode  : 2") == ranks
    assert not (tmp_path / "out").exists()


def test_a_rank_without_the_run_ends_all_ranks(tmp_path):
    images = write_images(tmp_path / "images", 4)
    script = tmp_path / "other_run.py"
    script.write_text(f"import os, sys\nsys.argv[2] += os.environ['RANK'].replace('0', '')\n{MAIN}")
    done = torchrun(script, "classify", "cifar10-cnn", images, "--passes", 2, "--out", tmp_path / "d")
    (line,) = own_lines(done.stderr)
    assert line.startswith("apac: on rank 1 of 2, cifar10-cnn1 holds no run ")
    assert done.stderr.count("exitcode  : 2") == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_training_that_is_interrupted_saves_a_checkpoint_and_continues(number, tmp_path):
    out, log = tmp_path / "run", tmp_path / "log"
    elastic = Path(__file__).parent.parent / "elastic.py"  # checkpoints after every few steps
    command = [*STANDALONE, elastic, "train", "--data", "mnist-5k", "--epochs", 2, "--batch-size", 50, "--out", out]
    interrupted(log, number, (out / "checkpoint.safetensors").exists, *command)
    (line,) = own_lines(log.read_text())
    assert line.startswith("apac: stopped in epoch ")
    assert "a checkpoint is saved; resume with: apac train --resume" in line
    assert succeeds(log, start(log, *command))
    assert len(apac.load(out).history) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ranks_that_decide_are_interrupted_and_continue(number, tmp_path):
    images, out, log = write_images(tmp_path / "images", 300), tmp_path / "d", tmp_path / "log"
    options = ["classify", "cifar10-cnn", images, "--passes", 64, "--part-size", 5, "--out", out]
    interrupted(log, number, lambda: list(out.glob("parts/*.sha256")), *STANDALONE, "-m", "apac", *options)
    assert sorted(own_lines(log.read_text())) == [
        f"apac: rank {rank}: interrupted; the same command continues with what is left in {out}." for rank in (0, 1)
    ]
    assert not (out / "claims").exists()
    stored = len(list(out.glob("parts/*.sha256")))
    assert 0 < stored < 60
    assert succeeds(log, start(log, *STANDALONE, "-m", "apac", *options))
    assert len(list(out.glob("parts/*.sha256"))) == 60


def interrupted(log: Path, number: int, reached: Callable[[], object], *command: object) -> None:
    """Start ranks, and send the agent and the ranks a signal, as a terminal does; nothing of ours shows a traceback."""
    agent = start(log, *command)
    wait_until(reached, agent)
    for pid in (agent.pid, *ranks_of(agent)):
        with suppress(ProcessLookupError):  # the agent passes SIGTERM on, by which a rank may have ended
            os.kill(pid, number)
    assert agent.wait(SECONDS)
    assert "/apac/" not in "".join(line for line in log.read_text().splitlines() if line.startswith("  File "))


def own_lines(log: str) -> list[str]:
    return [line for line in log.splitlines() if line.startswith("apac: ")]


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
    assert own_lines(done.stderr) == [
        "apac: on rank 1 of 2, there is no folder /proc/self/cwd/images; give a folder with a subfolder of images "
        "for each class."
    ]
    assert not (tmp_path / "run").exists()
