"""Train one of the paper's networks on nine tenths of the training images, and decide the other tenth.

    python benchmarks/held_out.py cifar10-cnn --weight-decay 0.05 --out trials/cnn-0.05 --json results/held-out.json

This is how settings are chosen: the test images are not read. The settings that are not given are those of the recipe
of the same name, with 30 epochs in bfloat16. A training that is in its folder already is only decided again, and
replaces its row.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import apac
from apac.paper import recipes
from apac.runs import provenance
from apac.runs.labeled_images import images_held_out
from apac.runs.storage import write_json

PASSES = (1, 64)


@dataclass(frozen=True)
class Trial:
    network: str
    config: dict[str, Any]
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
    parser.add_argument("network", choices=recipes.TABLE)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--weight-decay", type=float)
    parser.add_argument("--tied", type=float, help="fraction of the epochs in which an MLP shares weights")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the training")
    parser.add_argument("--json", type=Path, help="a file to which the results are added")
    options = parser.parse_args()
    given = {name: getattr(options, name) for name in ("weight_decay", "tied") if getattr(options, name) is not None}
    trial = trained(options.network, options.out, epochs=options.epochs, **given)
    settings = ", ".join(f"{name} {trial.config[name]:g}" for name in ("epochs", "weight_decay", "tied"))
    print(
        f"{trial.network}, {settings}: loss {trial.loss:.3f}, plain {trial.plain:.2%}, M = 1 {trial.one_pass:.2%}, "
        f"M = {PASSES[-1]} {trial.apac:.2%}, calibrated NLL {trial.nll:.4f} ± {trial.nll_error:.4f}"
    )
    if options.json is not None:
        rows = json.loads(options.json.read_text()) if options.json.exists() else []
        others = [row for row in rows if (row["network"], row["config"]) != (trial.network, trial.config)]
        write_json(options.json, [*others, asdict(trial)])


def trained(network: str, out: Path, **changes: Any) -> Trial:
    """Train with the recipe's settings but for `changes`, and decide the held-out images."""
    recipe = recipes.find(network)
    config = replace(recipe.config, validation_fraction=0.1, precision="bfloat16", **changes)
    run = apac.train(network, recipe.data, recipe.deformation, config=config, out=out, resume=True)
    held_out = images_held_out(run)
    classifier = run.classifier(apac.FixedPasses(PASSES[-1]), seed=1, paper_rule=True)
    evaluation = apac.evaluate(classifier, held_out.images, held_out.labels, passes=PASSES)
    nll = evaluation.measures_of("product", PASSES[-1]).calibrated.nll
    one, many = evaluation.rows
    last = run.history[-1]
    return Trial(
        network,
        run.config.to_json(),
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
