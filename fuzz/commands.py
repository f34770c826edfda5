"""The commands that are killed and interrupted, and how one is started in the server of `fuzz.server`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from PIL import Image, ImageDraw

ROOT = Path(__file__).parent.parent
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Command:
    """A command, and the files that it must leave behind with the same content each time."""

    arguments: tuple[str, ...]
    results: tuple[str, ...] = ()
    started: str = ""  # pattern of a file; if there is one, the command is to be resumed

    def line(self, place: Path) -> tuple[str, ...]:
        """Return the command in a folder."""
        resume = self.started and any(place.glob(self.started))
        return (*self.arguments, "--resume") if resume else self.arguments


KILLED = {
    "train": Command(
        ("train", "--data", "mnist-5k", "--epochs", "4", "--batch-size", "20", "--out", "run"),
        ("run/weights.safetensors",),
        "run/run.json",
    ),
    "evaluate": Command(
        ("evaluate", "trained", "--passes", "1,4"), ("trained/confusion.csv", "trained/evaluation.csv")
    ),
    "classify": Command(("classify", "mnist-cnn", "digits", "--csv", "out.csv"), ("out.csv",)),
    "classify --out": Command(
        ("classify", "mnist-cnn", "digits", "--passes", "64", "--part-size", "2", "--out", "parts"),
        ("parts/job.json", "parts/parts/000000.csv", "parts/parts/000002.csv"),
    ),
    "reproduce": Command(
        ("reproduce", "mnist-5k-cnn", "--epochs", "1", "--passes", "1,4", "--out", "report"),
        ("report/runs/deformed/weights.safetensors", "report/runs/original/weights.safetensors", "report/results.csv"),
        "report/runs/*/run.json",
    ),
    "fetch": Command(("data", "fetch", "mnist"), ("data/mnist.safetensors",)),
}
INTERRUPTED = KILLED | {
    "classify": Command(("classify", "mnist-cnn", "digits", "--passes", "100000")),
    "tune": Command(("tune", "trained", "--passes", "16")),
    "merge": Command(("merge", "decided", "--csv", "merged.csv")),
    "preview": Command(("preview", "trained", "--out", "preview.png")),
    "export": Command(("export", "trained", "exported.onnx")),
    "serve": Command(("serve", "mnist-cnn", "--port", "0")),
    "bench": Command(("bench", "--only", "deform", "--rounds", "1")),
}


class Ended(NamedTuple):
    status: int  # of the exit; negative if a signal ended it
    seconds: float  # of the processor
    errors: str
    left: list[int]  # processes of the command that still run


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
        after: float = 0.0,
        *,
        file_bytes: int | None = None,
    ) -> Ended:
        """Run a command in a folder, and send it a signal after so many seconds of the processor.

        It cannot write files of more than `file_bytes`, as if the disk were full.
        """
        log = place.with_name(f"{place.name}.errors")
        child = self.begin(place, arguments, log, file_bytes)
        if number:
            send(child, number, after)
        return self.end(child, log)

    def begin(self, place: Path, arguments: tuple[str, ...], log: Path, file_bytes: int | None = None) -> int:
        """Start a command and return its process."""
        print(json.dumps([str(place), str(log), file_bytes, *arguments]), file=self.requests, flush=True)
        return int(self.answers.readline())

    def end(self, child: int, log: Path) -> Ended:
        """Wait for the command that was started."""
        status, seconds = json.loads(self.answers.readline())
        return Ended(status, seconds, log.read_text(), processes_of(child))


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


def send(child: int, number: int, after: float) -> None:
    """Send a signal to a process after so many seconds of the processor, if it has not ended before.

    The processor's seconds of an undisturbed process are the same each time, whatever else the machine does.
    """
    while (used := _seconds(child)) is not None:
        if used >= after:
            os.kill(child, number)
            return
        time.sleep(0.002)


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
    """Make what the commands need: a trained run, some images, and decided parts."""
    (place / "digits").mkdir(parents=True)
    for number in range(6):
        picture = Image.new("L", (60, 80), 255)
        ImageDraw.Draw(picture).line([(10 + number, 10), (50, 20), (20, 70)], fill=0, width=6)
        picture.save(place / "digits" / f"{number}.png")
    for arguments in (
        ("train", "--data", "mnist-5k", "--epochs", "2", "--validation-fraction", "0.5", "--out", "trained"),
        ("classify", "mnist-cnn", "digits", "--plain", "--part-size", "2", "--out", "decided"),
    ):
        ended = running.run(place, arguments)
        assert ended.status == 0, ended.errors


def files(place: Path) -> set[str]:
    """Return the names of all files and folders below a folder."""
    return {str(path.relative_to(place)) for path in place.rglob("*")}
