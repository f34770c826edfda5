"""Kill commands at random moments and compare the result of the same command afterwards.

python -m fuzz.kills 300 [--seed NUMBER] [COMMAND...]
"""

from __future__ import annotations

import argparse
import shutil
import signal
import tempfile
import time
from collections import Counter
from functools import partial
from itertools import cycle
from pathlib import Path
from random import Random

from fuzz.commands import WRITING, Moment, Server, files, prepare, server

AT_A_TIME = 4  # kills of a command before it may complete
MANY = 25  # kills of a command, of which one must leave each kind of unfinished work


def check(name: str, kills: int, random: Random, running: Server, prepared: Path) -> Counter[str]:
    """Kill a command some times, complete it, and compare with the undisturbed result.

    Of the kills before it is completed, the first comes as soon as there is unfinished work of one kind, the others at
    random moments. Return the number of kills, and of those that left unfinished work to the next command, by its kind.
    """
    command, rounds = WRITING[name], 0
    counts = Counter({"kills": 0, **dict.fromkeys(command.left, 0)})
    kinds = cycle(command.left.values())
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "place"  # always the same, because some results have its name
        shutil.copytree(prepared, place)
        complete = running.run(place, command.arguments)
        assert complete.status == 0, f"{name}: {complete.errors}"
        expected, names = {result: (place / result).read_bytes() for result in command.results}, files(place)
        while counts["kills"] < kills:
            shutil.rmtree(place)
            shutil.copytree(prepared, place)
            pattern = next(kinds, None)
            for number in range(min(random.randint(1, AT_A_TIME), kills - counts["kills"])):
                after: Moment = random.uniform(0, complete.seconds)
                if number == 0 and pattern is not None:
                    after = partial(_exists, place, pattern)
                ended = running.run(place, command.line(place), signal.SIGKILL, after)
                assert ended.status in (-signal.SIGKILL, 0), f"{name}: {ended.errors}"
                if ended.status:
                    counts["kills"] += 1
                    counts.update(kind for kind, pattern in command.left.items() if _exists(place, pattern))
            ended = running.run(place, command.line(place))
            assert ended.status == 0, f"{name}: {ended.errors}"
            for result, content in expected.items():
                assert (place / result).read_bytes() == content, f"{name}: other {result}"
            left = files(place) ^ names
            assert not left, f"{name}: too many or too few files: {sorted(left)}"
            rounds += 1
    found = "".join(f", {counts[kind]} of them left {kind}" for kind in command.left)
    print(f"{name}: killed {counts['kills']} times{found}; {rounds} times completed with the same result", flush=True)
    missing = [kind for kind in command.left if not counts[kind]]
    assert counts["kills"] < MANY or not missing, f"{name}: no kill left {' or '.join(missing)}"
    return counts


def _exists(place: Path, pattern: str) -> bool:
    return any(place.glob(pattern))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz.kills")
    parser.add_argument("kills", type=int, nargs="?", default=300)
    parser.add_argument("names", metavar="COMMAND", nargs="*", default=list(WRITING))
    parser.add_argument("--seed", type=int, default=time.time_ns())
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    total: Counter[str] = Counter()
    with server() as running, tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared"
        prepare(prepared, running)
        random = Random(options.seed)
        for name in options.names:
            total += check(name, -(-options.kills // len(options.names)), random, running, prepared)
    print(f"{total.pop('kills')} kills in all" + "".join(f", {count} left {kind}" for kind, count in total.items()))


if __name__ == "__main__":
    main()
