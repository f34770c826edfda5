"""Measurements in a separate process: peak memory and the run time of a command."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from apac.bench.race import Entry
from apac.errors import InputError
from apac.progress import Progress

PASSES = (64, 4096)
IMAGES = 500  # enough for both numbers of passes to use a prepared network
MEMORY = """
import torch
from apac import Classifier, FixedPasses, presets
from apac.models import build
from apac.randomness import generator
network = build("mnist-cnn", generator=generator(0, "bench", 0))
Classifier(network, presets.mnist(), FixedPasses({passes})).decide(torch.rand({images}, 1, 28, 28))
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print(int(line.split()[1]) * 1024)
"""


def measure(rounds: int, progress: Progress) -> list[Entry]:
    return [*_memory(progress), *_start(rounds, progress)]


def _memory(progress: Progress) -> list[Entry]:
    if not Path("/proc/self/status").exists():  # only Linux reports the peak of a process separately from its parent
        return []
    group = f"peak memory of a decision, mnist-cnn, {IMAGES} images"
    peaks = []
    for number, passes in enumerate(PASSES):
        peaks.append(float(_run([sys.executable, "-c", MEMORY.format(passes=passes, images=IMAGES)])))
        progress(group, number + 1, len(PASSES))
    names = [f"{passes:,} passes" for passes in PASSES]
    return [
        Entry(group, name, peak / 2**20, "MiB", names[0], peaks[0] / peak)
        for name, peak in zip(names, peaks, strict=True)
    ]


def _start(rounds: int, progress: Progress) -> list[Entry]:
    """Measure the run time of commands, including imports."""
    from PIL import Image

    from apac import data
    from apac.runs.train import train
    from apac.training.config import TrainConfig

    group = "run time of a command"
    apac = [sys.executable, "-m", "apac"]
    with tempfile.TemporaryDirectory() as folder:
        run, image = Path(folder) / "run", Path(folder) / "digit.png"
        train("mnist-cnn", "mnist-5k", config=TrainConfig(epochs=1), out=run)
        Image.fromarray(data.load("mnist-5k").test_images[0, 0].numpy()).save(image)
        commands = {
            "apac --help": [*apac, "--help"],
            "apac classify, one image, 256 passes, kernels already compiled": [
                *apac,
                "classify",
                str(run),
                str(image),
                "--passes",
                "256",
            ],
        }
        best = dict.fromkeys(commands, float("inf"))
        for number in range(rounds):
            for name, command in commands.items():
                started = time.perf_counter()
                _run(command)
                best[name] = min(best[name], time.perf_counter() - started)
            progress(group, number + 1, rounds)
    return [Entry(group, name, seconds, "s") for name, seconds in best.items()]


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"{' '.join(command[1:3])} failed: {done.stderr.strip().rpartition(chr(10))[2]}.")
    return done.stdout
