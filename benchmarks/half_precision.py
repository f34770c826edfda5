"""Copy a run with its weights in half precision, and count the test images whose decision changes.

    python benchmarks/half_precision.py runs/cifar10-modern cifar10-modern

The network computes in single precision as before: its weights are converted when they are loaded.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

import apac
from apac.classify.scores import rank
from apac.runs.labeled_images import images_to_test
from apac.runs.storage import write_tensors

PASSES = 4  # more do not bring decisions nearer to a border


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("run", type=Path, help="a folder of apac train")
    parser.add_argument("copy", type=Path, help="the folder of the copy")
    options = parser.parse_args()
    options.copy.mkdir(parents=True)
    shutil.copy(options.run / "run.json", options.copy)
    with safe_open(options.run / "weights.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    halved = {name: t.half() if t.is_floating_point() and t.ndim > 1 else t for name, t in tensors.items()}
    write_tensors(options.copy / "weights.safetensors", halved, metadata)
    for passes in (0, PASSES):
        before, after = (decisions(folder, passes) for folder in (options.run, options.copy))
        name = f"{passes} passes" if passes else "plain"
        print(f"{name}: {int((before != after).sum())} of {len(before):,} decisions change")


def decisions(folder: Path, passes: int) -> Tensor:
    """Return the class of each test image after a number of passes, 0 for the plain prediction."""
    run = apac.load(folder, paper_rule=True)
    images = images_to_test(run).images
    if not passes:
        return rank(run.classifier().plain(images))[:, 0]
    return run.classifier(apac.FixedPasses(passes)).decide(images).labels


if __name__ == "__main__":
    main()
