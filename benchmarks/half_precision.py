"""Copy a run with its weights in half precision, and count the test images whose plain prediction changes.

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
    before, after = (plain_labels(folder) for folder in (options.run, options.copy))
    print(f"{int((before != after).sum())} of {len(before):,} plain decisions change")


def plain_labels(folder: Path) -> Tensor:
    """Return the class of each test image by the plain prediction."""
    run = apac.load(folder, paper_rule=True)
    return rank(run.classifier().plain(images_to_test(run).images))[:, 0]


if __name__ == "__main__":
    main()
