"""Measure `apac classify RUN FOLDER --out`: overlap, memory, ranks, and the cost of parts.

    python benchmarks/classify_folder.py photos --files 20000

writes JPEG files of 256 × 256 pixels to the folder unless they are there, and prints ratios of measurements of one run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import apac
from apac.data.image_file import without_warnings
from apac.distributed.claims import Claims
from apac.distributed.deciding import decide_files
from apac.distributed.file_list import find_images, store_list
from apac.distributed.merge import merge_parts
from apac.distributed.parts import Parts
from apac.runs.file_classifier import FileClassifier, file_classifier


def write_photos(folder: Path, count: int) -> Path:
    """Write photos of smooth noise, 100 different ones, which take as long to decode as real ones."""
    random = np.random.default_rng(0)
    pictures = [
        Image.fromarray(random.integers(0, 256, (24, 24, 3), dtype=np.uint8)).resize(
            (256, 256), Image.Resampling.BICUBIC
        )
        for _ in range(100)
    ]
    for number in range(count):
        path = folder / f"{number // 1000:04}" / f"{number:07}.jpg"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            pictures[number % 100].save(path, quality=85)
    return folder


def decider_of(run: str, passes: int | None) -> FileClassifier:
    return file_classifier(apac.load(run), None if passes is None else apac.FixedPasses(passes))


@dataclass(frozen=True)
class Time:
    """Of a function: seconds on the wall, and of all processors, which other work on the machine changes less."""

    wall: float
    processor: float


def timed(function: Callable[[], object]) -> Time:
    wall, processor = time.perf_counter(), time.process_time()
    function()
    return Time(time.perf_counter() - wall, time.process_time() - processor)


def overlap(decider: FileClassifier, folder: Path, out: Path, threads: int, rounds: int) -> None:
    """Print the speed of decoding alone, of the network alone, and of both together."""
    torch.set_num_threads(threads)
    files = store_list(out / "list", find_images([str(folder)]))
    prepared = decider.prepared(files.count)
    times: dict[str, list[Time]] = {"decoding": [], "network": [], "together": []}

    def decode() -> None:
        with without_warnings(), ThreadPoolExecutor(threads) as pool:
            for part in range(files.parts):
                torch.stack(list(pool.map(decider.decode, map(Path, files.read(part)), chunksize=8)))

    with without_warnings():
        pixels = [torch.stack([decider.decode(Path(path)) for path in files.read(part)]) for part in range(files.parts)]
    passes = float(prepared.decide(pixels[0]).passes.double().mean())  # also compiles the kernels
    for number in range(rounds):
        times["decoding"].append(timed(decode))
        times["network"].append(timed(lambda: [prepared.decide(part) for part in pixels]))
        times["together"].append(timed(partial(decide_files, decider, [str(folder)], out / f"together{number}")))
    for name, values in times.items():
        print(f"{name}: {files.count / statistics.median(value.wall for value in values):,.0f} files/s")
    print(f"about {passes:.0f} passes per image; together / the slower alone:")
    for decoding, network, together in zip(*times.values(), strict=True):
        wall = max(decoding.wall, network.wall) / together.wall
        processor = max(decoding.processor, network.processor) / together.processor
        print(f"  {wall:.2f} by the clock, {processor:.2f} by processor time")
    parts_overhead(out / "together0", out, statistics.median(value.wall for value in times["together"]))


def parts_overhead(job: Path, out: Path, total: float) -> None:
    """Print what writing, claiming and joining the parts cost, one after the other."""
    parts = sorted((job / "parts").glob("*.csv"))
    copies = Parts(out / "copies", ".csv", len(parts))

    def write() -> None:
        with Claims(out / "claims") as claims:
            for number, path in enumerate(parts):
                claims.take(str(number))
                copies.write(number, path.read_bytes())
                claims.release(str(number))

    writing, merging = timed(write).wall, timed(lambda: merge_parts(job, out / "all.csv")).wall
    print(f"claims and parts {100 * writing / total:.2f} %, merging {100 * merging / total:.2f} % of the time")


def rank_process(
    run: str,
    passes: int | None,
    folder: Path,
    out: Path,
    rank: int,
    ranks: int,
    threads: int,
    ready: Barrier,
    used: Any,
) -> None:
    torch.set_num_threads(threads)
    decider = decider_of(run, passes)
    decider.decide(torch.zeros(2, *decider.image_shape, dtype=torch.uint8))  # compiles the kernels
    ready.wait()
    used.put(timed(lambda: decide_files(decider, [str(folder)], out, rank=rank, ranks=ranks)).processor)


def time_ranks(arguments: argparse.Namespace, out: Path, ranks: int, threads: int) -> Time:
    """Return the time in which ranks decide the folder, without their start."""
    context = multiprocessing.get_context("spawn")
    ready, used = context.Barrier(ranks + 1), context.SimpleQueue()
    fixed = arguments.run, arguments.passes, arguments.folder, out
    processes = [
        context.Process(target=rank_process, args=(*fixed, r, ranks, threads, ready, used)) for r in range(ranks)
    ]
    for process in processes:
        process.start()
    ready.wait()
    start = time.perf_counter()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("a rank failed")
    return Time(time.perf_counter() - start, sum(used.get() for _ in processes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--run", default="cifar10-cnn")
    parser.add_argument("--passes", type=int, help="a fixed number; the certified rule by default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", choices=("overlap", "ranks"), help="only this part")
    arguments = parser.parse_args()
    write_photos(arguments.folder, arguments.files)
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary)
        if arguments.part != "ranks":
            overlap(
                decider_of(arguments.run, arguments.passes), arguments.folder, out, arguments.threads, arguments.rounds
            )
        if arguments.part != "overlap":
            for number in range(arguments.rounds):
                one = time_ranks(arguments, out / f"one{number}", 1, arguments.threads)
                peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
                two = time_ranks(arguments, out / f"two{number}", arguments.threads, 1)
                wall, processor = one.wall / two.wall, one.processor / two.processor
                print(f"{arguments.threads} ranks / one process with {arguments.threads} threads:")
                print(f"  {wall:.2f} by the clock, {processor:.2f} by processor time")
                print(f"peak memory of a process: {peak:,.0f} MB")
            contents = []
            for name in ("one0", "two0"):
                merge_parts(out / name, out / f"{name}.csv")
                contents.append((out / f"{name}.csv").read_bytes())
            print("the joined files are equal" if contents[0] == contents[1] else "the joined files differ")


if __name__ == "__main__":
    main()
