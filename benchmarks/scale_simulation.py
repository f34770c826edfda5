"""Predict how long many ranks take to decide very many images, and what that costs.

    python benchmarks/scale_simulation.py --images 1e9 --ranks 1000 --price 0.05
    python benchmarks/scale_simulation.py --check photos

The first predicts; the second measures the costs of an image on this machine, and compares the predictions for one and
two ranks with runs. docs/scale.md describes the model.
"""

from __future__ import annotations

import argparse
import heapq
import math
import multiprocessing
import random
import statistics
import tempfile
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

PART_SIZE, MAX_PARTS = 512, 100_000  # as in apac.distributed.file_list
MEASURED = 512  # images on which the check measures the costs


@dataclass(frozen=True)
class Costs:
    """What an image, a part and a rank cost, in seconds of one core."""

    per_pass: float = 4.4e-5  # mnist-cnn, 45,800 passes per second on two cores (README.md)
    decode: float = 1.5e-3  # a JPEG file of 256 × 256 pixels
    passes_mean: float = 49.0  # of the certified rule on the 10,000 test images of MNIST (docs/certified.md)
    passes_deviation: float = 285.0  # three of them take 16,384
    per_part: float = 0.02  # claim, two files, release
    list_file: float = 5e-6  # to list a file and to store its name, once for the job
    start: float = 5.0  # imports, the run, the engine
    spread: float = 0.1  # standard deviation of the logarithm of the speed of ranks
    failures: float = 0.01  # of a rank per hour; its part is decided again after the expiry of its claim
    expiry: float = 60.0


@dataclass(frozen=True)
class Prediction:
    wall: float  # seconds
    busy: float  # seconds of all ranks
    parts: int
    operations: float  # on the shared file system, per second

    def describe(self, ranks: int, price: float) -> str:
        hours = ranks * self.wall / 3600
        return (
            f"{ranks:,} ranks: {self.wall / 3600:,.2f} hours, {100 * self.busy / (ranks * self.wall):.1f} % busy, "
            f"{self.parts:,} parts, {self.operations:,.0f} file operations/s, {hours:,.0f} core hours, "
            f"{hours * price:,.0f} $"
        )


def predict(costs: Costs, images: int, ranks: int, part_size: int | None = None, seed: int = 0) -> Prediction:
    """Simulate ranks that take one part after the other, the fast ones more of them."""
    chance = random.Random(seed)
    size = part_size or PART_SIZE * max(1, math.ceil(images / (PART_SIZE * MAX_PARTS)))
    parts = math.ceil(images / size)
    listed = costs.list_file * images
    per_image = costs.decode + costs.per_pass * costs.passes_mean
    deviation = costs.per_pass * costs.passes_deviation
    slowness = [math.exp(chance.gauss(0, costs.spread)) if ranks > 1 else 1.0 for _ in range(ranks)]
    free = [(listed + costs.start * slow, rank) for rank, slow in enumerate(slowness)]
    heapq.heapify(free)
    end = busy = 0.0
    for part in range(parts):
        count = min(size, images - part * size)
        start, rank = heapq.heappop(free)
        work = max(count * costs.decode, chance.gauss(count * per_image, math.sqrt(count) * deviation))
        work = work * slowness[rank] + costs.per_part
        while chance.random() < costs.failures * work / 3600:  # the rank dies, and another one takes over
            start += costs.expiry + work * chance.random()
        busy, end = busy + work, max(end, start + work)
        heapq.heappush(free, (start + work, rank))
    return Prediction(end, busy, parts, 10 * parts / end + images / end)  # one read of each file, ten for each part


def check(folder: Path, files: int, run: str, passes: int) -> None:
    """Compare the predictions for 1 and 2 ranks with runs.

    The costs are measured in as many processes at once, because cores share their cache and memory.
    """
    from classify_folder import time_ranks, write_photos

    write_photos(folder, files)
    if (count := sum(1 for _ in folder.rglob("*.jpg"))) != files:
        raise SystemExit(f"{folder} has {count} files instead of {files}; choose an empty folder.")
    arguments = argparse.Namespace(run=run, passes=passes, folder=folder)
    for ranks in (1, 2):
        context = multiprocessing.get_context("spawn")
        ready, queue = context.Barrier(ranks), context.SimpleQueue()
        measuring = [
            context.Process(target=measure, args=(folder, files, run, passes, ready, queue)) for _ in range(ranks)
        ]
        for process in measuring:
            process.start()
        found = [queue.get() for _ in measuring]
        per_pass, decode, start = (statistics.mean(values) for values in zip(*found, strict=True))
        for process in measuring:
            process.join()
        print(
            f"{ranks} busy: a pass takes {1e6 * per_pass:.0f} µs and decoding {1e3 * decode:.2f} ms of a core, and "
            f"a rank {start:.1f} s to start",
            flush=True,
        )
        costs = Costs(per_pass, decode, passes, 0.0, start=start, spread=0.0, failures=0.0)
        predicted = predict(costs, files, ranks)
        with tempfile.TemporaryDirectory() as temporary:
            measured = time_ranks(arguments, Path(temporary), ranks, 1)
        print(
            f"{ranks} ranks: {predicted.wall:.1f} s predicted, {measured.wall:.1f} s by the clock "
            f"({measured.wall / predicted.wall:.2f} times)",
            flush=True,
        )


def measure(folder: Path, files: int, run: str, passes: int, ready: Barrier, queue: SimpleQueue[Any]) -> None:
    """Put the seconds of a pass, of decoding an image, and of preparing the network, by the clock."""
    import torch
    from classify_folder import decider_of, timed

    from apac.data.image_file import without_warnings

    torch.set_num_threads(1)
    decider = decider_of(run, passes)
    paths = sorted(folder.rglob("*.jpg"))[:MEASURED]
    pixels = torch.stack([decider.decode(path) for path in paths])
    decider.decide(pixels[:8])  # compiles the kernels
    ready.wait()
    start = timed(lambda: decider.prepared(files)).wall
    decider = decider.prepared(files)
    with without_warnings():
        decode = timed(lambda: [decider.decode(path) for path in paths]).wall / len(paths)
    queue.put((timed(lambda: decider.decide(pixels)).wall / (len(paths) * passes), decode, start))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=float, default=1e9)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--price", type=float, default=0.05, help="of a core for an hour, in $")
    parser.add_argument("--check", type=Path, help="a folder for JPEG files, on which one and two ranks are measured")
    parser.add_argument("--files", type=int, default=8192, help="of the check: 16 parts")
    parser.add_argument("--run", default="cifar10-cnn")
    parser.add_argument("--passes", type=int, default=32, help="of an image in the check")
    arguments = parser.parse_args()
    if arguments.check is not None:
        check(arguments.check, arguments.files, arguments.run, arguments.passes)
        return
    for ranks in arguments.ranks:
        print(predict(Costs(), int(arguments.images), ranks).describe(ranks, arguments.price))


if __name__ == "__main__":
    main()
