"""Kill commands at random moments and compare the result of the same command afterwards: python -m fuzz.kills 200."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from PIL import Image, ImageDraw

APAC = (sys.executable, "-m", "apac", "--threads", "1")


@dataclass(frozen=True)
class Command:
    """A command, and the files that it must leave behind with the same content each time."""

    arguments: tuple[str, ...]
    result: Callable[[Path], bytes]
    started: str = ""  # pattern of a file; if there is one, the command is to be resumed

    def line(self, place: Path) -> tuple[str, ...]:
        """Return the command in a folder."""
        resume = self.started and any(place.glob(self.started))
        return (*self.arguments, "--resume") if resume else self.arguments


def weights(folder: Path) -> Callable[[Path], bytes]:
    return lambda place: (place / folder / "weights.safetensors").read_bytes()


COMMANDS = {
    "train": Command(
        ("train", "--data", "mnist-5k", "--epochs", "1", "--out", "run"), weights(Path("run")), "run/run.json"
    ),
    "evaluate": Command(
        ("evaluate", "trained", "--passes", "1,4"), lambda place: (place / "trained/confusion.csv").read_bytes()
    ),
    "classify": Command(
        ("classify", "mnist-cnn", "digits", "--csv", "out.csv"), lambda place: (place / "out.csv").read_bytes()
    ),
    "reproduce": Command(
        ("reproduce", "--epochs", "1", "--passes", "1,4", "--out", "report"),
        weights(Path("report/runs/deformed")),
        "report/runs/*/run.json",
    ),
    "fetch": Command(("data", "fetch", "mnist"), lambda place: (place / "data/mnist.safetensors").read_bytes()),
}


def prepare(place: Path) -> None:
    """Make what the commands need: a trained run and some images."""
    (place / "digits").mkdir()
    for number in range(6):
        picture = Image.new("L", (60, 80), 255)
        ImageDraw.Draw(picture).line([(10 + number, 10), (50, 20), (20, 70)], fill=0, width=6)
        picture.save(place / "digits" / f"{number}.png")
    finish(place, ("train", "--data", "mnist-5k", "--epochs", "1", "--out", "trained"))


def start(place: Path, arguments: tuple[str, ...]) -> subprocess.Popen[str]:
    environment = os.environ | {"APAC_DATA": str(place / "data"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*APAC, *arguments], cwd=place, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(place: Path, arguments: tuple[str, ...]) -> str:
    """Run a command to its end; return "" or, if it failed, its last line."""
    process = start(place, arguments)
    _, errors = process.communicate()
    assert "Traceback" not in errors, errors
    return "" if process.returncode == 0 else errors.strip().splitlines()[-1]


def kill(place: Path, arguments: tuple[str, ...], seconds: float) -> bool:
    """Start a command, and kill it after a time; return whether it was still running."""
    process = start(place, arguments)
    try:
        process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    return process.returncode == -signal.SIGKILL


def check(name: str, kills: int, random: Random) -> int:
    """Kill a command some times, complete it, and compare with the undisturbed result. Return the number of kills."""
    command = COMMANDS[name]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        prepare(place)
        undisturbed = Path(shutil.copytree(place, place / "undisturbed"))
        started = time.monotonic()
        problem = finish(undisturbed, command.line(undisturbed))
        if problem:
            print(f"{name}: skipped, {problem}", flush=True)
            return 0
        seconds, expected = time.monotonic() - started, command.result(undisturbed)
        done = 0
        while done < kills:
            disturbed = Path(shutil.copytree(place, place / "disturbed", ignore=shutil.ignore_patterns("undisturbed")))
            for _ in range(min(8, kills - done)):
                # Most of the time, Python imports torch; half of the kills are in the last third.
                latest = random.choice((random.uniform(0, seconds), random.uniform(0.6 * seconds, seconds)))
                done += kill(disturbed, command.line(disturbed), latest)
                if random.random() < 0.3:
                    break
            problem = finish(disturbed, command.line(disturbed))
            assert not problem, f"{name}: {problem}"
            assert command.result(disturbed) == expected, f"{name}: another result"
            shutil.rmtree(disturbed)
        print(f"{name}: killed {done} times, the result is the same each time", flush=True)
        return done


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    names = sys.argv[2:] or list(COMMANDS)
    total = sum(check(name, -(-kills // len(names)), Random(time.time_ns())) for name in names)
    print(f"{total} kills in all")


if __name__ == "__main__":
    main()
