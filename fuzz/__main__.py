"""Fuzz every target for a time: python -m fuzz SECONDS [TARGET...]. Findings are stored in fuzz/found."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from random import Random

import torch

from fuzz.check import FOUND, failure
from fuzz.targets import targets

MEMORY = 6 << 30  # bytes of address space; an allocation by a number of a file fails
SECONDS = 5.0  # that an input may take


def main() -> None:
    seconds, *names = sys.argv[1:] or ["60"]
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    found = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, target in targets(Path(folder)).items():
            if names and name not in names:
                continue
            random, inputs, slowest, before = Random(time.time_ns()), 0, 0.0, _peak()
            end = time.monotonic() + float(seconds)
            while time.monotonic() < end:
                data = target.mutate(random.choice(target.seeds), random)
                started = time.process_time()
                reason = failure(target, data)
                taken = time.process_time() - started
                inputs, slowest = inputs + 1, max(slowest, taken)
                if reason is None and taken > SECONDS:
                    reason = f"it took {taken:.1f} s"
                if reason is not None:
                    found += 1
                    path = FOUND / f"{name}-{sha256(data).hexdigest()[:12]}"
                    path.write_bytes(data)
                    print(f"{path}: {reason}", flush=True)
            grown = _peak() - before
            print(f"{name}: {inputs:,} inputs, the slowest {slowest:.2f} s, peak memory + {grown} MB", flush=True)
    sys.exit(1 if found else 0)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


main()
