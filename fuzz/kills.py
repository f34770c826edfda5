"""Kill commands at random moments and compare the result of the same command afterwards: python -m fuzz.kills 200."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from fuzz.commands import KILLED, Server, files, prepare, server

AT_A_TIME = 4  # kills of a command before it may complete


def check(name: str, kills: int, random: Random, running: Server, prepared: Path) -> int:
    """Kill a command some times, complete it, and compare with the undisturbed result. Return the number of kills."""
    command, done, rounds = KILLED[name], 0, 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "place"  # always the same, because some results have its name
        shutil.copytree(prepared, place)
        complete = running.run(place, command.arguments)
        assert complete.status == 0, f"{name}: {complete.errors}"
        expected, names = {result: (place / result).read_bytes() for result in command.results}, files(place)
        while done < kills:
            shutil.rmtree(place)
            shutil.copytree(prepared, place)
            for _ in range(min(random.randint(1, AT_A_TIME), kills - done)):
                after = random.uniform(0, complete.seconds)
                ended = running.run(place, command.line(place), signal.SIGKILL, after)
                assert ended.status in (-signal.SIGKILL, 0), f"{name}: {ended.errors}"
                done += ended.status != 0
            ended = running.run(place, command.line(place))
            assert ended.status == 0, f"{name}: {ended.errors}"
            for result, content in expected.items():
                assert (place / result).read_bytes() == content, f"{name}: other {result}"
            left = files(place) ^ names
            assert not left, f"{name}: too many or too few files: {sorted(left)}"
            rounds += 1
    print(f"{name}: killed {done} times, completed {rounds} times, each time with the same result", flush=True)
    return done


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    names = sys.argv[2:] or list(KILLED)
    with server() as running, tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared"
        prepare(prepared, running)
        random = Random(time.time_ns())
        total = sum(check(name, -(-kills // len(names)), random, running, prepared) for name in names)
    print(f"{total} kills in all")


if __name__ == "__main__":
    main()
