"""Measure what it costs to refuse the worst files, and to read the largest: python -m fuzz.refusals [NAME...].

Every file is given to the command that a user would type, in a process of its own. The seconds are those of the
processor, the memory is the peak of the whole process, and both include Python and torch, about as much as a command
that names no file takes. The exit status is 1 if a file is not refused in one line with exit status 2, within 5 s and
600 MB.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).parent.parent
SECONDS, MEGABYTES = 5.0, 600
PROGRESS = re.compile(r"reading images: \d+ %.*")  # of commands that read a folder before they refuse a file in it
ATTEMPTS = 3  # a busy machine makes a command slower; the fastest counts
BASELINES = {"a missing file": ("classify", "mnist-cnn", "missing.png"), "a digit": ("classify", "mnist-cnn", "6.png")}


@dataclass(frozen=True)
class Case:
    name: str
    arguments: tuple[str, ...]  # of apac; or of Python, if they begin with -c
    refused: bool = True


@dataclass(frozen=True)
class Cost:
    status: int
    seconds: float
    megabytes: int
    errors: str

    def problems(self, case: Case) -> list[str]:
        """Return what is wrong with how a command ended."""
        lines = [line for line in self.errors.strip().splitlines() if not PROGRESS.fullmatch(line)]
        if not case.refused:
            return [] if self.status == 0 else [f"status {self.status}: {self.errors.strip()[-200:]}"]
        found = [f"{self.seconds:.1f} s"] * (self.seconds > SECONDS) + [f"{self.megabytes} MB"] * (
            self.megabytes > MEGABYTES
        )
        if self.status != 2 or len(lines) != 1 or not lines[0].startswith("apac: "):
            found.append(f"status {self.status}, {len(lines)} lines: {self.errors.strip()[-300:]}")
        return found


def cases() -> list[Case]:
    from fuzz import hostile_files, hostile_images

    refused = [Case(name, ("classify", "mnist-cnn", name)) for name in hostile_images.refused()]
    refused += [Case(name, command) for name, (command, _) in hostile_files.refused().items()]
    read = [Case(name, ("classify", "cifar10-cnn", "--plain", name), refused=False) for name in hostile_images.read()]
    return refused + read + [Case(name, command, refused=False) for name, (command, _) in hostile_files.read().items()]


def write(case: Case, place: Path) -> None:
    """Write the files that a command reads. They take memory, which this process must not have: see `measure`."""
    from fuzz import hostile_files, hostile_images

    images = hostile_images.refused() if case.refused else hostile_images.read()
    if case.name in images:
        images[case.name](place / case.name)
    elif case.name in BASELINES:
        hostile_files.digit(place / "6.png")
    else:
        files = hostile_files.refused() if case.refused else hostile_files.read()
        files[case.name][1](place)


def measure(arguments: tuple[str, ...], place: Path) -> Cost:
    """Run a command in a folder.

    A process inherits the peak memory of the one that started it, so this one must be small.
    """
    command = [sys.executable, *(arguments if arguments[0] == "-c" else ("-m", "apac", "--threads", "1", *arguments))]
    log = place.with_name("errors")
    child = os.fork()
    if child == 0:
        os.chdir(place)
        for path, number in (os.devnull, 1), (str(log), 2):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        os.execv(command[0], command)
    _, status, used = os.wait4(child, 0)
    seconds = used.ru_utime + used.ru_stime
    return Cost(os.waitstatus_to_exitcode(status), seconds, used.ru_maxrss >> 10, log.read_text())


def measured(names: list[str]) -> Iterator[tuple[Case, Cost]]:
    """Measure the named cases, or all."""
    paths = (str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", ""))
    os.environ |= {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(1, get_context("spawn")) as writer:
        baselines = [Case(name, command, refused=False) for name, command in BASELINES.items()]
        for case in [*baselines, *writer.submit(cases).result()]:
            if names and case.name not in names and case not in baselines:
                continue
            place = Path(folder) / "place"
            place.mkdir()
            writer.submit(write, case, place).result()
            cost = measure(case.arguments, place)
            for _ in range(1, ATTEMPTS):
                if case.refused and cost.seconds > SECONDS:
                    cost = min(cost, measure(case.arguments, place), key=lambda each: each.seconds)
            shutil.rmtree(place)
            yield case, cost


def main() -> None:
    refused: list[Cost] = []
    read: list[Cost] = []
    problems: list[str] = []
    print(f"{'s':>6} {'MB':>5}  what")
    for case, cost in measured(sys.argv[1:]):
        kind = "" if case.refused else " (read)"
        said = cost.errors.strip().splitlines()[-1:] if case.refused else []
        print(f"{cost.seconds:6.1f} {cost.megabytes:5}  {case.name}{kind}{': ' * bool(said)}{''.join(said)[:90]}")
        sys.stdout.flush()
        if case.name not in BASELINES:
            (refused if case.refused else read).append(cost)
            problems += [f"{case.name}: {problem}" for problem in cost.problems(case)]
    for kind, costs in (("refused", refused), ("read", read)):
        if costs:
            seconds, megabytes = max(cost.seconds for cost in costs), max(cost.megabytes for cost in costs)
            print(f"{len(costs)} {kind}: at most {seconds:.1f} s and {megabytes} MB")
    print("\n".join(problems))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
