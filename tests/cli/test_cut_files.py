"""Files that are cut: afterwards the same command gives the undisturbed result, or one sentence and status 2.

Each command runs once, and its folder is copied after each file that it writes, as a process that is killed there
leaves it. Then the files are cut in each copy, and in the folder of the complete command. The files are those that
commands are seen to write, so that a new one is cut too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fuzz.commands import Command
from fuzz.server import small_data
from PIL import Image, ImageDraw
from typer.testing import Result

import apac
from apac import data
from apac.data import mapped, mnist_5k, store
from apac.data.temporary import temporary_beside
from apac.evaluation import score_cache
from apac.runs import checkpointer, storage
from commands import call, succeed

TRAINED = (
    ("train", "--epochs", "1", "--batch-size", "10", "--validation-fraction", "0.5", "--out", "trained"),
    ("evaluate", "trained", "--passes", "4"),
)
DECIDED = (("classify", "mnist-cnn", "digits", "--plain", "--part-size", "2", "--out", "decided"),)
FETCHED = (("data", "fetch", "mnist"),)
TRAIN = ("train", "--epochs", "2", "--batch-size", "20", "--out", "run")
# Each command, and those that come before it.
COMMANDS = {
    "train": ((), Command(TRAIN, started="run/run.json")),
    "train --data": (FETCHED, Command((*TRAIN, "--data", "mnist"), started="run/run.json")),
    "train --cache": (
        (),
        Command((*TRAIN, "--data", "photos", "--network", "mnist-cnn", "--cache", "cache", "--overwrite")),
    ),
    "fetch": ((), Command(("data", "fetch", "mnist"))),
    "evaluate": (TRAINED[:1], Command(("evaluate", "trained", "--passes", "1,4"))),
    "evaluate --against": (
        TRAINED,
        Command(("evaluate", "trained", "--rule", "certified", "--limit", "16", "--against", "4")),
    ),
    "tune": (TRAINED, Command(("tune", "trained", "--passes", "4"))),
    "classify": (TRAINED, Command(("classify", "trained", "digits", "--passes", "4", "--csv", "out.csv"))),
    "classify --out": (
        TRAINED,
        Command(("classify", "trained", "digits", "--passes", "4", "--part-size", "2", "--out", "parts")),
    ),
    "classify --parquet": (
        TRAINED,
        Command(("classify", "trained", "digits", "--plain", "--part-size", "2", "--out", "parts", "--parquet")),
    ),
    "merge": (DECIDED, Command(("merge", "decided", "--csv", "merged.csv"))),
    "preview": (TRAINED, Command(("preview", "trained", "--out", "preview.png"))),
    "export": (TRAINED, Command(("export", "trained", "exported.onnx"))),
    "reproduce": (
        (),
        Command(
            ("reproduce", "mnist-5k-cnn", "--epochs", "1", "--passes", "1,16", "--out", "report"),
            started="report/runs/*/run.json",
        ),
    ),
}
QUICK = ("train", "fetch", "merge")  # the files of further commands are cut by the marker
# What is left out of a decision or an evaluation if the file is missing or damaged.
OPTIONAL = ("reliability.json",)
# What is only read to decide the parts that are left: if there are none, it stays cut.
UNUSED = ("files.offsets",)
FIGURES = (
    *(
        "confusion.confusion_matrix",
        "probabilities.reliability",
        "probabilities.risk_coverage",
        "images.deformed_samples",
    ),
    *("curves.passes_against_margin", "tuning.nll_against_strength"),
)


@pytest.fixture(scope="module")
def tiny() -> Any:
    return small_data(4, megabytes=1)


@pytest.fixture(autouse=True)
def few_digits_and_no_figures(tiny: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands on 40 digits, which save what they have done after each step and each pass."""
    monkeypatch.setattr(mnist_5k, "load", lambda: tiny[0])
    for name, entry in tiny[1].items():
        monkeypatch.setitem(data._FETCHED, name, entry)
    monkeypatch.setenv("APAC_DATA", str(tmp_path / "place" / "data"))
    monkeypatch.setattr(checkpointer, "SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(score_cache, "SAVE_EVERY", 1)
    monkeypatch.setattr("apac.inference.engine.MIN_OPERATIONS", float("inf"))  # exporting takes longer than the job
    for name in FIGURES:
        monkeypatch.setattr(f"apac.reporting.figures.{name}", lambda *arguments, **options: b"figure")
    monkeypatch.setattr("apac.paper.report.draw", lambda result: {})
    monkeypatch.chdir(tmp_path)


@dataclass
class Recorder:
    """Copies the folder when a file is written for the first time, as a killed process leaves it."""

    place: Path
    copies: Path
    written: dict[str, Path] = field(default_factory=dict)  # copies by the file that is new in them

    @contextmanager
    def temporary_beside(self, path: Path, **options: Any) -> Iterator[Path]:
        with temporary_beside(path, **options) as temporary:
            yield temporary
        name = str((self.place / path).relative_to(self.place))
        if name not in self.written:
            self.written[name] = self.copies / str(len(self.written))
            with suppress(shutil.Error):  # another thread removes a claim
                shutil.copytree(self.place, self.written[name])


def restore(copy: Path, place: Path) -> None:
    os.chdir(place.parent)
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(copy, place)
    os.chdir(place)


def contents(place: Path, names: Iterable[str]) -> dict[str, Any]:
    """Return the contents of files, without the times that they contain; None for a file that is missing."""
    return {name: _content(place / name) for name in names}


def files(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}


def _content(path: Path) -> Any:
    if not path.exists():
        return None
    if path.suffix == ".json":
        return _without_times(storage.read_json(path, "it stayed cut"))
    if path.suffix == ".safetensors":  # their metadata may have times
        return {
            name: tensor.numpy().tobytes()
            for name, tensor in storage.read_tensors(path, "", lambda shapes: None)[0].items()
        }
    return path.read_bytes().endswith(b"</html>\n") if path.suffix == ".html" else path.read_bytes()


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_times(item) for name, item in value.items() if name != "date" and "seconds" not in name}
    return [_without_times(item) for item in value] if isinstance(value, list) else value


def differences(wanted: Any, found: Any, name: str = "") -> list[str]:
    """Name the values that differ."""
    if isinstance(wanted, dict) and isinstance(found, dict) and wanted.keys() == found.keys():
        return [text for key in wanted for text in differences(wanted[key], found[key], f"{name} {key}")]
    return [] if wanted == found else [f"{name} is {str(found)[:100]}, not {str(wanted)[:100]}"]


def is_one_sentence(result: Result) -> bool:
    lines = [line for line in result.stderr.splitlines() if line.startswith("apac: ")]
    return result.exit_code == 2 and len(lines) == 1 and "Traceback" not in result.stderr


def pictures(place: Path) -> None:
    for number in range(6):
        picture = Image.new("L", (60, 80), 255)
        ImageDraw.Draw(picture).line([(10 + number, 10), (50, 20), (20, 70)], fill=0, width=6)
        for folder in (place / "digits", place / "photos" / "ab"[number % 2]):
            folder.mkdir(parents=True, exist_ok=True)
            picture.save(folder / f"{number}.png")


def record(command: Command, place: Path, copies: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Run a command; return a copy of the folder for each file that it writes, by the name of the file."""
    before, recorder = files(place), Recorder(place, copies)
    with monkeypatch.context() as patch:
        for module in (storage, mapped, store):
            patch.setattr(module, "temporary_beside", recorder.temporary_beside)
        succeed(*command.arguments)
    assert files(place) - before <= recorder.written.keys(), "a file was not written atomically"
    return recorder.written


def cases(
    written: dict[str, Path], complete: Path, inputs: set[str], places: tuple[float, ...]
) -> Iterator[tuple[str, Path, float]]:
    """Yield a file, a copy of the folder that has it, and the part of the file that is left."""
    for new, copy in written.items():
        yield from ((new, copy, place) for place in places)
        if len(places) > 1:
            yield from ((path, copy, 0.3) for path in sorted(files(copy) - inputs - {new}) if "claims" not in path)
    for path in sorted(files(complete) - inputs):
        yield from ((path, complete, place) for place in places[::5])


@pytest.mark.parametrize(
    ("name", "places"),
    [
        *(pytest.param(name, (0.5,), id=name) for name in QUICK),
        *(
            pytest.param(name, tuple(i / 20 for i in range(20)), id=f"{name}, at 20 places", marks=pytest.mark.slow)
            for name in COMMANDS
        ),
    ],
)
def test_a_cut_file_leads_to_the_undisturbed_result_or_one_sentence(name, places, tmp_path, monkeypatch):
    before, command = COMMANDS[name]
    place, complete = tmp_path / "place", tmp_path / "complete"
    pictures(place)
    inputs = files(place)
    os.chdir(place)
    for arguments in before:
        succeed(*arguments)
    written = record(command, place, tmp_path / "copies", monkeypatch)
    names, expected = files(place), contents(place, written)
    shutil.copytree(place, complete)
    failures = []
    for path, copy, part in cases(written, complete, inputs, places):
        size = (copy / path).stat().st_size
        wanted = [expected]
        if Path(path).name in OPTIONAL:
            restore(copy, place)
            (place / path).unlink()
            call(*command.line(place))
            wanted.append(contents(place, written))
        restore(copy, place)
        os.truncate(place / path, int(size * part))
        result = call(*command.line(place))
        where = f"{path}, {int(size * part)} of {size} bytes, of {'complete' if copy == complete else copy.name}"
        if result.exit_code == 0:
            try:
                found = contents(place, written)
            except apac.StorageError as error:
                failures.append(f"{where}: {error}")
                continue
            if path in expected and Path(path).name in UNUSED:
                found[path] = expected[path]
            if found not in wanted:
                failures += [f"{where}: {difference}" for difference in differences(expected, found)]
            if files(place) != names:
                failures.append(f"{where}: the files differ by {sorted(files(place) ^ names)}")
        elif not is_one_sentence(result):
            failures.append(f"{where}: status {result.exit_code}, {result.exception!r}, {result.stderr}")
    assert not failures, "\n".join(failures)
