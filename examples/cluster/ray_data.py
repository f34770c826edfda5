"""Decide images with Ray Data, where ray is installed: python examples/cluster/ray_data.py RUN FOLDER OUT

Ray reads and decodes the files, and each actor decides batches with a classifier of its own. The decision of an image
depends only on the run, the rule and the seed, so it does not matter which actor decides it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

import apac


class Decide:
    """An actor with a run in memory."""

    def __init__(self, folder: str) -> None:
        torch.set_num_threads(1)
        self.run = apac.load(folder)
        self.classifier = self.run.classifier()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        pixels = torch.from_numpy(np.stack(batch["image"]))  # uint8 (N, H, W, 3), or (N, H, W) if they are gray
        images = pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2)  # (N, C, H, W)
        decision = self.classifier.decide(self.run.normalize(images))
        return {
            "path": batch["path"],
            "label": np.array([self.run.classes[label] if label >= 0 else "" for label in decision.labels]),
            "probability": decision.probabilities.amax(dim=1).numpy(),
            "passes": decision.passes.numpy(),
        }


def main(run: str, folder: str, out: str) -> None:
    import ray

    channels, height, width = apac.load(run).image_shape
    images = ray.data.read_images(
        folder, size=(height, width), mode="RGB" if channels == 3 else "L", include_paths=True
    )
    # From one actor on, as many as there are cores: a fixed number may leave none to read the files.
    decided = images.map_batches(Decide, fn_constructor_args=(run,), batch_size=512, concurrency=(1, 1000))
    decided.write_parquet(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
