"""A process that has imported everything and forks a command for each line that it reads: python -m fuzz.server.

A command takes seconds to import torch, and a fraction of a second to do its work on the small data that it is given
here. Forked, it does nothing but its work.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch

import apac
import apac.cli
from apac import data
from apac.data import mnist_5k
from apac.data.base import Dataset
from apac.data.cifar10 import CIFAR10
from apac.data.mnist import MNIST
from apac.data.sources import Arrays
from apac.data.store import Entry
from apac.evaluation import score_cache
from apac.progress import Progress
from apac.runs import checkpointer
from fuzz.faults import Fault

IMPORTED = (
    *("apac.bench", "apac.distributed.deciding", "apac.evaluation", "apac.inference.onnx_export", "apac.paper.report"),
    *("apac.paper.reproduce", "apac.reporting.figures", "apac.runs.export", "apac.serve.app", "matplotlib.pyplot"),
    "torch._dynamo",  # by the first optimizer
)
PER_CLASS = 20  # digits
# Commands on so few digits take a second, in which they must save what they have done, as they do in an hour.
SECONDS_BETWEEN = 0.02  # checkpoints
SAVE_EVERY = 200  # passes, summed over images


@dataclass(frozen=True)
class Written:
    """A source that writes a file, as a download does, and returns the arrays of a data set."""

    arrays: Arrays
    megabytes: int = 50

    def __str__(self) -> str:
        return "written"

    def get(self, folder: Path, progress: Progress) -> Arrays:
        with (folder / "archive").open("wb") as file:
            for done in range(self.megabytes):
                file.write(bytes(1 << 20))
                progress(str(self), done + 1, self.megabytes)
        return self.arrays


def small_data(per_class: int, megabytes: int = Written.megabytes) -> tuple[Dataset, dict[str, Entry]]:
    """Return a mnist-5k of a few digits, and the data sets to download: such a mnist, and a cifar10 without sources."""
    whole = mnist_5k.load()
    train, test = (
        torch.cat([torch.nonzero(labels == digit)[:per_class, 0] for digit in range(10)])
        for labels in (whole.train_labels, whole.test_labels)
    )
    small = Dataset(
        *("mnist-5k", whole.train_images[train], whole.train_labels[train]),
        *(whole.test_images[test], whole.test_labels[test], whole.classes),
    )
    keys = ("train_images", "train_labels", "test_images", "test_labels")
    arrays = {key: getattr(small, key).numpy().astype(np.uint8) for key in keys}
    mnist = replace(
        MNIST,
        sources=(Written(arrays, megabytes),),
        shapes={key: array.shape for key, array in arrays.items()},
        digests={key: sha256(array.tobytes()).hexdigest() for key, array in arrays.items()},
    )
    return small, {"mnist": mnist, "cifar10": replace(CIFAR10, sources=())}


def main() -> None:
    torch.set_num_threads(1)  # a forked process must not wait for threads of its parent
    small, downloaded = small_data(PER_CLASS)
    mnist_5k.load = lambda: small
    data._FETCHED.update(downloaded)
    checkpointer.SECONDS_BETWEEN, score_cache.SAVE_EVERY = SECONDS_BETWEEN, SAVE_EVERY
    for name in IMPORTED:
        __import__(name)
    apac.load("mnist-cnn").classifier(apac.FixedPasses(16)).decide(torch.zeros(2, 1, 28, 28))  # compiles kernels
    assert threading.active_count() == 1, "a thread would be missing in a forked process"
    gc.freeze()  # a process that ends does not touch the memory of its parent
    print("ready", flush=True)
    for line in sys.stdin:
        folder, output, fault, *arguments = json.loads(line)
        read_end, write_end = os.pipe()  # of the errors: a disk that is full has no place for them
        child = os.fork()
        if child == 0:
            break
        os.close(write_end)
        print(child, flush=True)
        _, status, used = os.wait4(child, 0)
        answer = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, _written(read_end)
        print(json.dumps(answer), flush=True)
    else:
        return
    os.setsid()
    os.chdir(folder)
    os.environ["APAC_DATA"] = str(Path(folder) / "data")
    os.dup2(write_end, 2)
    is_full = fault["file_bytes"] is not None  # also for what a command prints
    for path, number in (os.devnull, 0), (os.devnull if is_full else output, 1):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
    Fault(**fault).apply()
    sys.argv = ["apac", "--threads", "1", *arguments]
    apac.cli.main()  # and Python ends as after every command


def _written(read_end: int) -> str:
    """Return what a process wrote to a pipe before it ended, and close the pipe."""
    os.set_blocking(read_end, False)  # a process that is left over may have it open
    with open(read_end, "rb", buffering=0) as pipe:
        return (pipe.read(1 << 20) or b"").decode(errors="replace")


if __name__ == "__main__":
    main()
