"""Write the first 2,000 CIFAR-10 training images of each class as PNG files, one folder per class.

python benchmarks/cifar10_folder.py FOLDER
apac train --data FOLDER --out runs/photos
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

from apac import data

PER_CLASS = 2000


def write(folder: Path) -> None:
    dataset = data.load("cifar10")
    for label, name in enumerate(dataset.classes):
        (folder / name).mkdir(parents=True)
        for number in (dataset.train_labels == label).nonzero()[:PER_CLASS, 0].tolist():
            pixels = dataset.train_images[number].permute(1, 2, 0).numpy()
            Image.fromarray(pixels).save(folder / name / f"{number:05d}.png")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
