"""The commands that are killed and interrupted, and how one is started in the server of `fuzz.server`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

from PIL import Image, ImageDraw

from fuzz.faults import WAITING, Fault

ROOT = Path(__file__).parent.parent
TICK = os.sysconf("SC_CLK_TCK")
LONGEST = 600.0  # seconds, in which an undisturbed command ends
TO_FOLLOW = 10.0  # seconds, in which the processes that it started end

# When a signal is sent: after a text was printed, when a function returns True, or after seconds of the processor. The
# processor's seconds of an undisturbed process are about the same each time, whatever else the machine does.
Moment = float | str | Callable[[], bool]


@dataclass(frozen=True)
class Command:
    """A command, and the files that it must leave behind with the same content each time."""

    arguments: tuple[str, ...]
    results: tuple[str, ...] = ()
    started: str = ""  # pattern of a file; if there is one, the command is repeated with the option `again`
    left: Mapping[str, str] = field(default_factory=dict)  # what kills leave for the next command, and a pattern of it
    again: str = "--resume"

    def line(self, place: Path) -> tuple[str, ...]:
        """Return the command in a folder."""
        has_started = self.started and any(place.glob(self.started))
        return (*self.arguments, self.again) if has_started else self.arguments


WRITING = {
    "train": Command(
        ("train", "--data", "mnist-5k", "--epochs", "4", "--batch-size", "20", "--out", "run"),
        ("run/weights.safetensors",),
        "run/run.json",
        {"a checkpoint": "run/checkpoint.safetensors"},
    ),
    "evaluate": Command(
        ("evaluate", "trained", "--passes", "1,64"),
        ("trained/confusion.csv", "trained/evaluation.csv"),
        left={"partial scores": "trained/scores/*.partial.safetensors"},
    ),
    "evaluate --against": Command(
        ("evaluate", "trained", "--rule", "certified", "--limit", "64", "--against", "32"),
        ("trained/certified.csv",),
        left={"partial scores": "trained/scores/*.partial.safetensors"},
    ),
    "classify": Command(("classify", "mnist-cnn", "digits", "--csv", "out.csv"), ("out.csv",)),
    "classify --out": Command(
        ("classify", "mnist-cnn", "digits", "--passes", "256", "--part-size", "2", "--out", "parts"),
        ("parts/job.json", "parts/parts/000000.csv", "parts/parts/000002.csv"),
        left={"a job": "parts/job.json", "parts of a job": "parts/parts/*.sha256"},
    ),
    "reproduce": Command(
        ("reproduce", "mnist-5k-cnn", "--epochs", "1", "--passes", "1,16", "--out", "report"),
        ("report/runs/deformed/weights.safetensors", "report/runs/original/weights.safetensors", "report/results.csv"),
        "report/runs/*/run.json",
        {
            "a checkpoint": "report/runs/*/checkpoint.safetensors",
            "partial scores": "report/runs/*/scores/*.partial.safetensors",
            "certified decisions": "report/runs/*/scores/certified-*.safetensors",
        },
    ),
    "fetch": Command(
        ("data", "fetch", "mnist"), ("data/mnist.safetensors",), left={"an incomplete download": "data/.*/*/archive"}
    ),
    "merge": Command(("merge", "decided", "--csv", "merged.csv"), ("merged.csv",)),
    "preview": Command(("preview", "trained", "--out", "preview.png"), ("preview.png",)),
    "export": Command(("export", "trained", "exported.onnx"), ("exported.onnx",), "exported.onnx", again="--overwrite"),
    "tune": Command(("tune", "trained", "--passes", "16"), ("trained/tuning.json",)),
    "train --cache": Command(
        ("train", "--data", "photos", "--size", "16", "--epochs", "1", "--cache", "cache", "--out", "run"),
        ("run/weights.safetensors",),
        "run/run.json",
        {"decoded images": "cache/*.json"},
    ),
}


@dataclass(frozen=True)
class Endless:
    """A command that works or waits until a signal, and when it certainly does."""

    arguments: tuple[str, ...]
    after: Moment = 1.0
    fault: Fault = Fault()  # noqa: RUF009  (it is frozen)


FOREVER = "100000"  # passes, epochs or rounds
SLOW_DISK = Fault(slow_disk=True)
ENDLESS = {
    "train": Endless(("train", "--data", "mnist-5k", "--epochs", FOREVER, "--out", "run")),
    "tune": Endless(("tune", "trained", "--passes", FOREVER)),
    "evaluate": Endless(("evaluate", "trained", "--passes", FOREVER)),
    "evaluate --against": Endless(
        ("evaluate", "trained", "--rule", "certified", "--limit", "16", "--against", FOREVER), after=3.0
    ),
    "classify": Endless(("classify", "mnist-cnn", "digits", "--passes", FOREVER)),
    "classify --out": Endless(("classify", "mnist-cnn", "digits", "--passes", FOREVER, "--out", "parts")),
    "reproduce": Endless(("reproduce", "mnist-5k-cnn", "--epochs", FOREVER, "--out", "report")),
    "bench": Endless(("bench", "--only", "deform", "--rounds", FOREVER)),
    "serve": Endless(("serve", "mnist-cnn", "--port", "0"), "serving "),
} | {
    f"{name}, which waits for the disk": Endless(WRITING[name].arguments, WAITING, SLOW_DISK)
    for name in ("merge", "preview", "export", "fetch", "classify", "train --cache")
}


class Ended(NamedTuple):
    status: int  # of the exit; negative if a signal ended it
    seconds: float  # of the processor
    errors: str
    output: str
    left: list[int]  # processes of the command that still run


class Started(NamedTuple):
    process: int
    output: Path


@dataclass(frozen=True)
class Server:
    """The process that forks the commands."""

    requests: IO[str]
    answers: IO[str]

    def run(
        self,
        place: Path,
        arguments: tuple[str, ...],
        number: int = 0,
        after: Moment = 0.0,
        *,
        fault: Fault | None = None,
        within: float = LONGEST,
    ) -> Ended:
        """Run a command in a folder, and send it a signal at a moment. It must end `within` seconds then."""
        started = self.begin(place, arguments, fault=fault)
        if number:
            send(started, number, after)
        return self.end(started, within)

    def begin(self, place: Path, arguments: tuple[str, ...], name: str = "one", fault: Fault | None = None) -> Started:
        """Start a command. Commands in one folder at the same time have different names."""
        output = place.with_name(f"{place.name}.{name}.output")
        output.write_text("")  # of an earlier command
        request = [str(place), str(output), asdict(fault or Fault()), *arguments]
        print(json.dumps(request), file=self.requests, flush=True)
        return Started(int(self.answers.readline()), output)

    def end(self, started: Started, within: float = LONGEST) -> Ended:
        """Wait for the command that was started. One that does not end in time is killed."""
        deadline = time.monotonic() + within
        while _seconds(started.process) is not None:
            if time.monotonic() > deadline:
                os.killpg(started.process, signal.SIGKILL)
                break
            time.sleep(0.005)
        status, seconds, errors = json.loads(self.answers.readline())
        output = started.output.read_text(errors="replace")
        deadline = time.monotonic() + TO_FOLLOW
        while (left := processes_of(started.process)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return Ended(status, seconds, errors, output, left)


@contextmanager
def server() -> Iterator[Server]:
    paths = [str(ROOT), str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "fuzz.server"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Server(process.stdin, process.stdout)
        process.stdin.close()


def send(started: Started, number: int, after: Moment) -> None:
    """Send a signal to a process at a moment, if it has not ended before."""
    while (used := _seconds(started.process)) is not None:
        if _has_come(after, used, started.output):
            os.kill(started.process, number)
            return
        time.sleep(0.002)


def _has_come(moment: Moment, used: float, output: Path) -> bool:
    if isinstance(moment, str):
        return moment in output.read_text()
    return used >= moment if isinstance(moment, float) else moment()


def _seconds(child: int) -> float | None:
    """Return the processor's seconds of a process, None if it has ended. Its parent has not waited for it before."""
    try:
        state, *fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state == "Z" else (int(fields[10]) + int(fields[11])) / TICK


def processes_of(session: int) -> list[int]:
    """Return the processes of a session that run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, number, *_ = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(number) == session and state != "Z":
            found.append(int(path.parent.name))
    return found


def prepare(place: Path, running: Server) -> None:
    """Make what the commands need: a trained run, images, some of them by class, and decided parts."""
    (place / "digits").mkdir(parents=True)
    for number in range(6):
        picture = Image.new("L", (60, 80), 255)
        ImageDraw.Draw(picture).line([(10 + number, 10), (50, 20), (20, 70)], fill=0, width=6)
        picture.save(place / "digits" / f"{number}.png")
        (place / "photos" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        picture.save(place / "photos" / "ab"[number % 2] / f"{number}.png")
    for arguments in (
        ("train", "--data", "mnist-5k", "--epochs", "2", "--validation-fraction", "0.5", "--out", "trained"),
        ("classify", "mnist-cnn", "digits", "--plain", "--part-size", "2", "--out", "decided"),
    ):
        ended = running.run(place, arguments)
        assert ended.status == 0, ended.errors


def files(place: Path) -> set[str]:
    """Return the names of all files and folders below a folder."""
    return {str(path.relative_to(place)) for path in place.rglob("*")}
