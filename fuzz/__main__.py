"""Run every fuzzer for a time: python -m fuzz SECONDS [FUZZER...]. Findings are stored in fuzz/found.

Atheris keeps the inputs that reach new code of this package, and changes them further. The seconds are of the
processor, so that a busy machine does not shorten the work. With --log FOLDER, each fuzzer adds a line to a file of its
own, and its total is printed. Ctrl-C (or SIGTERM) ends the work; what was done is counted.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import mmap
import os
import resource
import signal
import sys
import tempfile
import time
from contextlib import ExitStack, redirect_stderr, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import NoReturn

import atheris
import torch

with redirect_stderr(io.StringIO()), atheris.instrument_imports(include=["apac"]):  # it prints their names
    from fuzz.check import FOUND, failure, measured
    from fuzz.targets import FUZZERS, build

ADDRESSES = 6 << 30  # bytes of address space; an allocation by a number of a file fails
ENDING = (signal.SIGINT, signal.SIGTERM)
HANG = 60.0  # seconds after which an input is given up
LARGEST = 4 << 20  # bytes of an input
CHANGED = 100_000  # bytes of an input that is changed further
FRESH = 0.3  # of the inputs are changed seeds
# Of libFuzzer: a crash ends the process, and time and memory are measured here.
SIGNALS = ("abrt", "bus", "fpe", "ill", "int", "segv", "term", "usr1", "usr2", "xfsz")
OPTIONS = ["-timeout=1000000", "-rss_limit_mb=0", "-malloc_limit_mb=0", "-cross_over=0", "-verbosity=0"]
OPTIONS += ["-report_slow_units=1000000", f"-max_len={LARGEST}", *(f"-handle_{name}=0" for name in SIGNALS)]
IN_MEMORY = Path("/dev/shm")  # files there are written fast


@dataclass
class Work:
    """What a fuzzer has done."""

    seconds: float = 0.0
    inputs: int = 0
    findings: int = 0
    slowest: float = 0.0
    megabytes: int = 0  # of the input that took most

    def __str__(self) -> str:
        return (
            f"{self.inputs:,} inputs in {self.seconds:,.0f} s, {self.findings} findings, the slowest "
            f"{self.slowest:.2f} s, the largest {self.megabytes} MB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz")
    parser.add_argument("seconds", type=float, nargs="?", default=60.0)
    parser.add_argument("names", metavar="FUZZER", nargs="*", default=list(FUZZERS))
    parser.add_argument("--log", type=Path)
    options = parser.parse_args()
    if unknown := set(options.names) - set(FUZZERS):
        parser.error(f"there is no fuzzer {min(unknown)}; choose among {', '.join(FUZZERS)}")
    found = 0
    ended: list[int] = []
    for name in options.names:
        if ended:
            break
        work = in_a_process(name, options.seconds, ended)
        print(f"{name}: {work}", flush=True)
        if options.log is not None:
            print(f"{name}, in all: {add_to_log(options.log, name, work)}", flush=True)
        found += work.findings
    sys.exit(1 if found else 0)


def in_a_process(name: str, seconds: float, ended: list[int]) -> Work:
    """Run a fuzzer in a process of its own: an input that ends it is a finding, too. Signals are added to `ended`."""
    with ExitStack() as stack:
        shared = stack.enter_context(mmap.mmap(-1, LARGEST + 4096))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None)))
        work = Work()
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)  # until either process has a handler
        child = os.fork()
        if child == 0:
            try:
                fuzz(name, seconds, folder, shared)
            finally:
                os._exit(1)

        def end(number: int, frame: object) -> None:
            ended.append(number)
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)

        for number in ENDING:
            signal.signal(number, end)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            return Work(**json.loads((folder / "work").read_text()))
        size = int.from_bytes(shared[:8], "little")
        work.inputs = int.from_bytes(shared[8:16], "little")
        work.seconds = int.from_bytes(shared[16:24], "little") / 1e3
        work.findings = 1
        target = FUZZERS[name][int.from_bytes(shared[24:32], "little")]
        store(target, shared[4096 : 4096 + size], f"the process ended with status {status}")
        return work


def fuzz(name: str, seconds: float, folder: Path, shared: mmap.mmap) -> NoReturn:
    """Run a fuzzer in this process, which then ends; what was done is in the file `work`."""
    ended: list[int] = []
    for ending in ENDING:
        signal.signal(ending, lambda number, frame: ended.append(number))
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # of files that are read with a remark
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    targets = [build(target, folder) for target in FUZZERS[name]]
    corpus = folder / "corpus"
    corpus.mkdir()
    seeds = [(number, seed) for number, target in enumerate(targets) for seed in target.seeds]
    for index, (number, seed) in enumerate(seeds):
        failure(targets[number], seed)  # compiles kernels and imports modules
        (corpus / str(index)).write_bytes(bytes([number]) + seed)
    work = Work()
    begin = time.process_time()

    def run(data: bytes) -> int:
        """Load an input; its first byte is the number of its target."""
        if ended or work.seconds >= seconds:
            (folder / "work").write_text(json.dumps(asdict(work)))
            os._exit(0)
        if not data or data[0] >= len(targets):
            return -1  # not to be changed further
        number, data = data[0], data[1:]
        shared[4096 : 4096 + len(data)] = data
        numbers = (len(data), work.inputs, int(work.seconds * 1e3), number)
        shared[:32] = b"".join(n.to_bytes(8, "little") for n in numbers)
        signal.setitimer(signal.ITIMER_PROF, HANG)  # its signal ends the process
        result = measured(targets[number], data)
        work.inputs += 1
        work.slowest, work.megabytes = max(work.slowest, result.seconds), max(work.megabytes, result.megabytes)
        if result.failure is not None:
            work.findings += 1
            store(FUZZERS[name][number], data, result.failure)
        signal.setitimer(signal.ITIMER_PROF, 0)
        work.seconds = time.process_time() - begin
        return 0

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        random = Random(seed)
        if 0 < len(data) <= CHANGED and data[0] < len(targets) and random.random() >= FRESH:
            number, data = data[0], data[1:]
        else:
            number = random.randrange(len(targets))
            data = random.choice(targets[number].seeds)
        return (bytes([number]) + targets[number].mutate(data, random))[:max_size]

    atheris.Setup([name, *OPTIONS, f"-artifact_prefix={folder}/", str(corpus)], run, custom_mutator=mutate)
    atheris.Fuzz()
    raise AssertionError("libFuzzer ends the process")


def store(target: str, data: bytes, reason: str) -> None:
    path = FOUND / f"{target}-{sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    print(f"{path}: {reason}", flush=True)


def add_to_log(folder: Path, name: str, work: Work) -> Work:
    """Add a line to the log of a fuzzer; return the sum of all of its lines."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.jsonl"
    with path.open("a") as file:
        file.write(json.dumps(asdict(work)) + "\n")
    lines = [Work(**json.loads(line)) for line in path.read_text().splitlines()]
    return Work(
        sum(line.seconds for line in lines),
        sum(line.inputs for line in lines),
        sum(line.findings for line in lines),
        max(line.slowest for line in lines),
        max(line.megabytes for line in lines),
    )


main()
