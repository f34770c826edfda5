"""Faults: a full disk, a folder that cannot be written, no home, two processes, kills, Ctrl-C, a clock that jumps.

Afterwards the same command gives the undisturbed result, or one sentence. `docs/security.md` has the table of all
faults; `test_cut_files.py` cuts the files that commands write. A command that is started here is forked from a process
that has imported everything, so that it takes a second, on small data; see `fuzz.server`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import typer
from fuzz.commands import ENDLESS, WRITING, Ended, Server, files, prepare, server
from fuzz.faults import Fault
from fuzz.kills import check

from apac import cli
from apac.runs import storage
from commands import refusal

SOURCE = Path(__file__).parent.parent.parent / "src"
QUICK = ("classify", "train")  # further commands are interrupted by the marker
SECONDS_TO_END = 60.0  # after a signal, on a machine that is busy otherwise
Contents = dict[str, bytes]


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server() as started:
        yield started


@pytest.fixture(scope="module")
def other() -> Iterator[Server]:
    """A second one, for a second process at the same time."""
    with server() as started:
        yield started


@pytest.fixture(scope="module")
def prepared(running: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults") / "prepared"
    prepare(folder, running)
    return folder


def fresh(prepared: Path) -> Path:
    """Return a copy, which always has the same path, because some results contain it."""
    place = prepared.with_name("place")
    shutil.rmtree(place, ignore_errors=True)
    return Path(shutil.copytree(prepared, place))


@pytest.fixture
def place(prepared: Path) -> Path:
    return fresh(prepared)


@pytest.fixture(scope="module")
def undisturbed(running: Server, prepared: Path) -> Callable[[str], Contents]:
    """A function that returns the results of a command without any fault."""
    known: dict[str, Contents] = {}

    def results_of(name: str) -> Contents:
        if name not in known:
            place = fresh(prepared)
            ended = running.run(place, WRITING[name].arguments)
            assert ended.status == 0, ended.errors
            known[name] = results(name, place)
            fresh(prepared)
        return known[name]

    return results_of


def results(name: str, place: Path) -> Contents:
    return {result: (place / result).read_bytes() for result in WRITING[name].results}


def contents(place: Path) -> Contents:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def one_sentence(ended: Ended, status: int = 2) -> str:
    assert ended.status == status, ended
    lines = [line for line in ended.errors.splitlines() if line.startswith("apac: ")]
    assert len(lines) == 1 and "Traceback" not in ended.errors, ended.errors
    return lines[0]


def in_the_way(place: Path, before: set[str]) -> list[str]:
    """Return temporary files and claims that a command left, which the next one would have to remove."""
    return [path for path in files(place) - before if Path(path).name.startswith(".") or "claims" in path]


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.0, 0.5, 1.0], ids=["first", "middle", "largest"])
@pytest.mark.parametrize("name", WRITING)
def test_after_a_full_disk_there_is_one_sentence_and_no_cut_file_and_then_the_same_result(
    name, part, undisturbed, place, running
):
    """No file can be as large as the smallest, the middle or the largest that the command writes."""
    expected, before = undisturbed(name), contents(place)
    assert running.run(place, WRITING[name].arguments).status == 0
    sizes = sorted(len(content) for path, content in contents(place).items() if content != before.get(path))
    fresh(place.with_name("prepared"))
    fault = Fault(file_bytes=max(0, sizes[int(part * (len(sizes) - 1))] - 1))
    sentence = one_sentence(running.run(place, WRITING[name].line(place), fault=fault))
    assert re.search("could not write|cannot store", sentence), sentence
    assert not in_the_way(place, set(before))
    ended = running.run(place, WRITING[name].line(place))
    assert ended.status == 0, ended.errors
    assert results(name, place) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITING)
def test_a_folder_that_is_read_only_leaves_one_sentence(name, place, running):
    before = contents(place)
    folders = [place, *(path for path in place.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        sentence = one_sentence(running.run(place, WRITING[name].line(place), fault=Fault(read_only=True)))
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert "Permission denied" in sentence
    assert contents(place) == before


def test_a_folder_that_cannot_be_written_is_named_in_one_sentence(tmp_path):
    for path in (Path("/proc/apac/out.json"), tmp_path / "file" / "out.json"):
        (tmp_path / "file").touch()
        with pytest.raises(storage.StorageError, match="could not write"):
            storage.write_json(path, {})
    assert "is a file" in refusal("train", "--data", "mnist-5k", "--epochs", 1, "--out", tmp_path / "file")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("classify", "mnist-cnn", "digits", "--plain"), 0),
        (("preview", "trained"), 0),  # matplotlib looks for its settings there
        (("evaluate", "trained", "--passes", "1"), 0),
        (("export", "trained", "exported.onnx"), 0),
        (("data", "fetch", "mnist"), 2),  # which would store it there
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_no_home_is_needed_but_to_store_data_there(arguments, status, place):
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    command = [sys.executable, "-m", "apac", "--threads", "1", *arguments]
    environment |= {"HOME": "/proc/home"}  # which cannot be made
    result = subprocess.run(command, cwd=place, env=environment, text=True, capture_output=True, check=False)
    assert result.returncode == status and "Traceback" not in result.stderr, result.stderr
    assert status == 0 or "set APAC_DATA to another folder" in result.stderr


@pytest.mark.slow
def test_reproduce_needs_no_home(undisturbed, place, running):
    """It says that it skips the showcase, whose data would be stored there."""
    expected = undisturbed("reproduce")
    ended = running.run(place, WRITING["reproduce"].line(place), fault=Fault(no_home=True))
    assert ended.status == 0, ended.errors
    assert results("reproduce", place) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in WRITING if name not in ("merge", "preview")])
def test_of_two_processes_in_one_folder_one_gives_the_result_and_the_other_too_or_one_sentence(
    name, undisturbed, place, running, other
):
    expected, before = undisturbed(name), files(place)
    first = other.begin(place, WRITING[name].arguments, "other")
    second = running.run(place, WRITING[name].arguments)
    both = (other.end(first), second)
    assert any(ended.status == 0 for ended in both), both
    for ended in both:
        assert ended.status == 0 or one_sentence(ended)
    assert results(name, place) == expected
    assert not in_the_way(place, before)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITING)
def test_a_killed_command_gives_the_same_result_afterwards(name, prepared, running):
    assert check(name, 3, Random(0), running, prepared)["kills"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITING)
def test_a_clock_that_jumps_does_not_change_the_result(name, undisturbed, place, running):
    expected = undisturbed(name)
    ended = running.run(place, WRITING[name].line(place), fault=Fault(clock_jumps=True))
    assert ended.status == 0, ended.errors
    assert results(name, place) == expected


def test_nothing_depends_on_the_clock_of_the_day():
    """It may jump. Times are differences of time.monotonic; the date is only stored with a result."""
    look = re.compile(r"\btime\.time(_ns)?\(|from time import .*\btime\b|\.(now|today|utcnow)\(")
    users = [path.name for path in SOURCE.rglob("*.py") if look.search(path.read_text())]
    assert users == ["provenance.py"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in ENDLESS]
)
def test_ctrl_c_ends_a_command_with_status_130_and_leaves_nothing(name, place, running):
    before, command = files(place), ENDLESS[name]
    ended = running.run(
        place, command.arguments, signal.SIGINT, command.after, fault=command.fault, within=SECONDS_TO_END
    )
    # Python ends itself by the signal if it came during an exec of a string, as in dataclasses: shells report 130 too.
    one_sentence(ended, -signal.SIGINT if ended.status == -signal.SIGINT else 130)
    assert not ended.left, ended  # a thread that is left would have kept the process
    assert not in_the_way(place, before)


@pytest.mark.slow
def test_sigterm_ends_a_server_with_status_0_as_soon_as_it_says_that_it_serves(place, running):
    command = ENDLESS["serve"]
    ended = running.run(place, command.arguments, signal.SIGTERM, command.after, within=SECONDS_TO_END)
    assert (ended.status, ended.errors, ended.left) == (0, "", [])


def test_every_command_is_interrupted():
    """`data path` only prints."""
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    assert {command.arguments[0] for command in ENDLESS.values()} == set(commands)
    assert set(commands["data"].commands) == {"fetch", "path"}
