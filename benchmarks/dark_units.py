"""Count the units of a free MLP that ink anywhere switches off, after training by Muon and by the paper's SGD.

    python benchmarks/dark_units.py --json results/units/mlp.json

A unit of the first layer is *dark* if its weights point away from the mean digit (a cosine below -0.35), and *dead* if
it is positive for fewer than one of 1,000 virtual samples. The default is a narrow MLP, 784 → 600 → 500 → 10, which
takes some minutes for each training; `--units 2500,2000` is the paper's. `--run RUN` counts those of a run of the
paper's MNIST MLP instead, for example report/runs/deformed of `apac reproduce mnist-mlp-free`.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

import apac
from apac import data
from apac.data.base import scale_pixels
from apac.runs import provenance
from apac.runs.storage import write_json

DARK = -0.35  # cosine of the angle between the weights and the mean image
DEAD = 1e-3  # share of the virtual samples for which a unit is positive
SAMPLES = 10_000
MUON: dict[str, Any] = {"optimizer": "muon", "momentum": 0.95, "batch_size": 250, "warmup": 0.05, "learning_rate": 0.02}
SGD: dict[str, Any] = {"optimizer": "sgd", "momentum": 0.9, "batch_size": 100, "learning_rate": 2**-5}  # the paper's
TRAININGS: dict[str, dict[str, Any]] = {
    "muon": MUON | {"weight_decay": 5e-6},
    "muon-decay": MUON | {"weight_decay": 0.05},  # a thousandth of the weights per step, at the highest learning rate
    "sgd": SGD | {"weight_decay": 5e-6},
    "sgd-decay": SGD | {"weight_decay": 5e-4},
}


@dataclass(frozen=True)
class Units:
    training: str
    units: tuple[int, int]
    epochs: int
    weight_decay: float  # decoupled for Muon; for SGD, and in rows of earlier versions, "muon-coupled", a penalty
    loss: float
    validation_error: float | None
    dark: float  # fraction of the units of the first layer
    dead: float
    dead_of_dark: float | None
    seconds: float
    written: dict[str, Any]  # where and when


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--units", default="600,500")
    parser.add_argument("--training", action="append", choices=list(TRAININGS), help="default: each")
    parser.add_argument("--json", type=Path, help="a file to which the results are added")
    parser.add_argument("--run", type=Path, help="a run of mnist-mlp, of which to count the units")
    options = parser.parse_args()
    first, second = (int(number) for number in options.units.split(","))
    names = () if options.run else options.training or TRAININGS
    runs = [counted("run", apac.load(options.run))] if options.run else []
    for found in chain(runs, (trained(name, (first, second), options.epochs) for name in names)):
        counts = f"{found.dark:.1%} dark, {found.dead:.1%} dead"
        print(f"{found.training}: loss {found.loss:.3f}, {counts}, {found.seconds:,.0f} s", flush=True)
        if options.json is not None:
            rows = json.loads(options.json.read_text()) if options.json.exists() else []
            write_json(options.json, [*rows, asdict(found)])


def trained(name: str, units: tuple[int, int], epochs: int) -> Units:
    """Train an MLP with random initial weights, and count its dark and dead units."""
    first, second = units
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Flatten(), nn.Linear(784, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 10)
        )
    config = apac.TrainConfig(epochs=epochs, schedule="cosine", validation_fraction=0.02, **TRAININGS[name])
    return counted(name, apac.train(network, "mnist", apac.presets.mnist(), config=config))


def counted(name: str, run: apac.Run) -> Units:
    """Count the dark and dead units of the first layer of a run."""
    images = scale_pixels(data.load("mnist").train_images)
    samples = apac.presets.mnist()(images[:SAMPLES], generator=torch.Generator().manual_seed(0))
    layer, second = run.network[1], run.network[3]  # type: ignore[index]
    with torch.no_grad():
        positive = (layer(samples.flatten(1)) > 0).double().mean(dim=0)
        cosines = nn.functional.cosine_similarity(layer.weight, images.mean(dim=0).flatten(), dim=1)
    dark, dead = cosines < DARK, positive < DEAD
    last = run.history[-1]
    return Units(
        name,
        (layer.out_features, second.out_features),
        run.config.epochs,
        run.config.weight_decay or 0.0,
        last.loss,
        last.validation_error,
        float(dark.double().mean()),
        float(dead.double().mean()),
        float(dead[dark].double().mean()) if dark.any() else None,
        last.seconds,
        provenance.describe(),
    )


if __name__ == "__main__":
    main()
