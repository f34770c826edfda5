"""Faults: a full disk, a folder that cannot be written, no home, two processes, kills and Ctrl-C at any moment.

Afterwards the same command gives the undisturbed result, or one sentence.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from fuzz.kills import COMMANDS, check, prepare, start

from apac.runs import storage
from commands import refusal

SOURCE = Path(__file__).parent.parent.parent / "src"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    prepare(folder)
    return folder


def run(place: Path, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "apac", "--threads", "1", *arguments]
    return subprocess.run(command, cwd=place, text=True, capture_output=True, check=False, **options)  # type: ignore[call-overload, no-any-return]


def small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def one_sentence(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 2, result.stderr
    lines = [line for line in result.stderr.splitlines() if line.startswith("apac: ")]
    assert len(lines) == 1 and "Traceback" not in result.stderr, result.stderr
    return lines[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_a_full_disk_leaves_one_sentence_and_no_file_that_is_cut(name, place):
    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}

    before = files()
    sentence = one_sentence(run(place, *COMMANDS[name].line(place), preexec_fn=small_files))
    assert "could not write" in sentence
    assert {path: content for path, content in files().items() if path in before} == before
    assert not [path for path in files() if path not in before and path.name.startswith(".")]


def test_a_folder_that_cannot_be_written_is_named_in_one_sentence(tmp_path):
    for path in (Path("/proc/apac/out.json"), tmp_path / "file" / "out.json"):
        (tmp_path / "file").touch()
        with pytest.raises(storage.StorageError, match="could not write"):
            storage.write_json(path, {})
    assert "is a file" in refusal("train", "--data", "mnist-5k", "--epochs", 1, "--out", tmp_path / "file")


@pytest.mark.slow
def test_no_home_is_needed_to_classify(place):
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    result = run(place, "classify", "mnist-cnn", "digits", "--plain", env=environment | {"HOME": "/nonexistent"})
    assert result.returncode == 0 and "Traceback" not in result.stderr, result.stderr


@pytest.mark.slow
def test_two_trainings_in_one_folder_leave_the_result_of_one(place):
    arguments = ("train", "--data", "mnist-5k", "--epochs", "1", "--out", "both")
    for process in [start(place, arguments) for _ in range(2)]:
        _, errors = process.communicate()
        assert "Traceback" not in errors, errors
    assert (place / "both/weights.safetensors").read_bytes() == (place / "trained/weights.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "evaluate", "classify"])
def test_a_killed_command_gives_the_same_result_afterwards(name):
    assert check(name, 3, Random(0)) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "evaluate", "classify", "reproduce"])
@pytest.mark.parametrize("seconds", [4, 8])
def test_ctrl_c_ends_a_command_with_status_130(name, seconds, place):
    process = start(place, COMMANDS[name].line(place))
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)  # a thread that is left would keep the process
        # Interrupted in C code that runs Python code, Python ends by the signal itself; shells report 130 then too.
        assert process.returncode in (130, -signal.SIGINT) and "Traceback" not in errors, errors
    else:
        assert process.returncode == 0


def test_nothing_depends_on_the_clock_of_the_day():
    """It may jump. Times are differences of time.monotonic."""
    users = [path.name for path in SOURCE.rglob("*.py") if "time.time(" in path.read_text()]
    assert users == []
