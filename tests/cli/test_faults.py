"""Faults: a full disk, a folder that cannot be written, no home, two processes, kills and Ctrl-C at any moment.

Afterwards the same command gives the undisturbed result, or one sentence.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from fuzz.commands import INTERRUPTED, KILLED, Ended, Server, files, prepare, server
from fuzz.kills import check

from apac.runs import storage
from commands import refusal

SOURCE = Path(__file__).parent.parent.parent / "src"
QUICK = ("classify", "train")  # further commands are interrupted by the marker


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server() as started:
        yield started


@pytest.fixture(scope="module")
def prepared(running: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults") / "prepared"
    prepare(folder, running)
    return folder


@pytest.fixture
def place(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "place"))


def one_sentence(ended: Ended) -> str:
    assert ended.status == 2, ended.errors
    lines = [line for line in ended.errors.splitlines() if line.startswith("apac: ")]
    assert len(lines) == 1 and "Traceback" not in ended.errors, ended.errors
    return lines[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_a_full_disk_leaves_one_sentence_and_no_file_that_is_cut(name, place, running):
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}

    before = contents()
    sentence = one_sentence(running.run(place, KILLED[name].line(place), file_bytes=4096))
    assert "could not write" in sentence
    assert {path: content for path, content in contents().items() if path in before} == before
    assert not [path for path in contents() if path not in before and path.name.startswith(".")]


def test_a_folder_that_cannot_be_written_is_named_in_one_sentence(tmp_path):
    for path in (Path("/proc/apac/out.json"), tmp_path / "file" / "out.json"):
        (tmp_path / "file").touch()
        with pytest.raises(storage.StorageError, match="could not write"):
            storage.write_json(path, {})
    assert "is a file" in refusal("train", "--data", "mnist-5k", "--epochs", 1, "--out", tmp_path / "file")


@pytest.mark.slow
def test_no_home_is_needed_to_classify(place):
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    command = [sys.executable, "-m", "apac", "--threads", "1", "classify", "mnist-cnn", "digits", "--plain"]
    environment |= {"HOME": "/nonexistent"}
    result = subprocess.run(command, cwd=place, env=environment, text=True, capture_output=True, check=False)
    assert result.returncode == 0 and "Traceback" not in result.stderr, result.stderr


@pytest.mark.slow
def test_two_trainings_in_one_folder_leave_the_result_of_one(place, running):
    arguments = (*KILLED["train"].arguments[:-1], "both")
    with server() as other:
        first = other.begin(place, arguments, place.with_name("other.errors"))
        ended = running.run(place, arguments), other.end(first, place.with_name("other.errors"))
    alone = running.run(place, (*arguments[:-1], "alone"))
    assert alone.status == 0 and all("Traceback" not in each.errors for each in ended), ended
    assert (place / "both/weights.safetensors").read_bytes() == (place / "alone/weights.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLED)
def test_a_killed_command_gives_the_same_result_afterwards(name, prepared, running):
    assert check(name, 3, Random(0), running, prepared) == 3


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in INTERRUPTED]
)
def test_ctrl_c_ends_a_command_with_status_130_and_leaves_nothing(name, place, running):
    before = files(place)
    ended = running.run(place, INTERRUPTED[name].line(place), signal.SIGINT, after=0.2)
    # Python ends itself by the signal if it came during an exec of a string, as in dataclasses: shells report 130 too.
    # A thread that is left would keep the process. The commands that are not in QUICK may be done before the signal.
    assert ended.status in (130, -signal.SIGINT) or (ended.status == 0 and name not in QUICK), ended
    assert "Traceback" not in ended.errors and not ended.left, ended
    assert not [path for path in files(place) - before if Path(path).name.startswith(".")]


def test_nothing_depends_on_the_clock_of_the_day():
    """It may jump. Times are differences of time.monotonic."""
    users = [path.name for path in SOURCE.rglob("*.py") if "time.time(" in path.read_text()]
    assert users == []
