"""Train a network on nine tenths of the training images, and decide the other tenth.

    python benchmarks/held_out.py cifar10-cnn --weight-decay 0.05 --out trials/cnn-0.05 --json results/held-out.json
    python benchmarks/held_out.py cifar10-modern --epochs 5 --strength 0.25 --narrow --out trials/modern-0.25

This is how settings are chosen: the test images are not read. The settings that are not given are those of the recipe
of the same name, or of docs/results.md for cifar10-modern, with 30 epochs in bfloat16. A training that is in its folder
already is only decided again, and replaces its row. A narrow network can be loaded by this script only.
"""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import apac
from apac.deform import presets
from apac.paper import recipes
from apac.runs import provenance
from apac.runs.labeled_images import images_held_out
from apac.runs.storage import write_json

PASSES = (1, 64)
MODERN = "cifar10-modern"
MODERN_CONFIG = apac.TrainConfig(batch_size=500, momentum=0.88, warmup=0, label_smoothing=0.2, replacement=False)
NARROW = (32, 128, 128)  # half of the widths of cifar10-modern: a quarter of its operations


@dataclass(frozen=True)
class Trial:
    network: str
    config: dict[str, Any]
    deformation: dict[str, Any]
    images: int  # held out
    loss: float
    plain: float  # error
    one_pass: float
    apac: float
    nll: float  # of APAC, calibrated by cross-fitting
    nll_error: float
    seconds: float  # of the training
    written: dict[str, Any]  # where and when


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("network", choices=(*recipes.TABLE, MODERN))
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--weight-decay", type=float)
    parser.add_argument("--tied", type=float, help="fraction of the epochs in which an MLP shares weights")
    parser.add_argument("--strength", type=float, help="of the paper's deformation for CIFAR-10, but for its flips")
    parser.add_argument("--narrow", action="store_true", help="train cifar10-modern with half of its widths")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the training")
    parser.add_argument("--json", type=Path, help="a file to which the results are added")
    options = parser.parse_args()
    if options.network == MODERN and options.strength is None:
        parser.error(f"{MODERN} needs --strength.")
    if (options.narrow or options.strength is not None) and options.network != MODERN:
        parser.error(f"--narrow and --strength are for {MODERN}.")
    given = {name: getattr(options, name) for name in ("weight_decay", "tied") if getattr(options, name) is not None}
    trial = trained(
        options.network, options.out, strength=options.strength, narrow=options.narrow, epochs=options.epochs, **given
    )
    settings = ", ".join(f"{name} {trial.config[name]:g}" for name in ("epochs", "weight_decay", "tied"))
    settings += "" if options.strength is None else f", strength {options.strength:g}"
    print(
        f"{trial.network}, {settings}: loss {trial.loss:.3f}, plain {trial.plain:.2%}, M = 1 {trial.one_pass:.2%}, "
        f"M = {PASSES[-1]} {trial.apac:.2%}, calibrated NLL {trial.nll:.4f} ± {trial.nll_error:.4f}"
    )
    if options.json is not None:
        rows = json.loads(options.json.read_text()) if options.json.exists() else []
        new = asdict(trial)
        key = ("network", "config", "deformation")
        others = [row for row in rows if [row[part] for part in key] != [new[part] for part in key]]
        write_json(options.json, [*others, new])


def trained(network: str, out: Path, *, strength: float | None, narrow: bool, **changes: Any) -> Trial:
    """Train with the usual settings but for `changes`, and decide the held-out images."""
    if network == MODERN:
        data, deformation, config = "cifar10", presets.cifar10(), MODERN_CONFIG
    else:
        recipe = recipes.find(network)
        data, deformation, config = recipe.data, recipe.deformation, recipe.config
    if strength is not None:
        parts = (part if isinstance(part, apac.Flip) else part.scaled(strength) for part in presets.cifar10().parts)
        deformation = apac.Compose(*parts)
    config = replace(config, validation_fraction=0.1, precision="bfloat16", **changes)
    with patch("apac.models.cifar10_modern.WIDTHS", NARROW) if narrow else nullcontext():
        run = apac.train(network, data, deformation, config=config, out=out, resume=True)
    held_out = images_held_out(run)
    classifier = run.classifier(apac.FixedPasses(PASSES[-1]), seed=1, paper_rule=True)
    evaluation = apac.evaluate(classifier, held_out.images, held_out.labels, passes=PASSES)
    nll = evaluation.measures_of("product", PASSES[-1]).calibrated.nll
    one, many = evaluation.rows
    last = run.history[-1]
    return Trial(
        f"{network}, narrow" if narrow else network,
        run.config.to_json(),
        run.settings.to_json()["deformation"],
        len(held_out.labels),
        last.loss,
        evaluation.plain,
        one.product,
        many.product,
        nll.value,
        nll.standard_error,
        last.seconds,
        provenance.describe(),
    )


if __name__ == "__main__":
    main()
