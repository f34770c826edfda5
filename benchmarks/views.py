"""Compare ways to decide by a network that was trained with flips and shifts by whole pixels.

    python benchmarks/views.py runs/cifar10-modern --json views.json

They are the plain prediction, the six fixed views of airbench (the image itself and two diagonal shifts by one pixel,
and the mirror images of these three), all values of the deformation (`apac.Exhaustive`), and APAC with a fixed and with
a certified number of passes. Every value of the deformation is evaluated once, on the test images and on the images
that training held out, on which the temperatures are fitted. All ways decide from this table: a pass has one of its
values. The seconds of a way are its passes times the measured seconds of one value.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import apac
from apac import trees
from apac.classify.scores import Scores, logarithms, rank
from apac.deform.base import Deformation
from apac.evaluation.intervals import mcnemar
from apac.evaluation.measures import CalibratedScores, Measures, calibrate, measure
from apac.runs import provenance
from apac.runs.labeled_images import LabeledImages, images_held_out, images_to_test
from apac.runs.storage import write_json

PASSES = (1, 4, 16, 64, 256)
CERTIFIED = apac.Certified(0.01, limit=4096)
# Right, down and the weight of a view and of its mirror image (airbench's infer_mirror_translate). The mean of logits
# and that of log-probabilities have the same softmax.
SIX_VIEWS = ((0, 0, 1 / 4), (-1, -1, 1 / 8), (1, 1, 1 / 8))

HEADER = "          decided by    error     NLL  to six    s.e. corrected corrupted  passes seconds"


class Picked(Deformation):
    """Replaces the first channel of an image, which is (value, number of the image) here, by a random value."""

    def __init__(self, deformation: Deformation, image_shape: tuple[int, int, int]) -> None:
        self.deformation, self.image_shape = deformation, image_shape
        self.rows = described(deformation.values(image_shape))

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> Tensor:
        rows = described(self.deformation.sample(n, self.image_shape, generator=generator))
        return torch.tensor([self.rows.index(row) for row in rows])

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        values = parameters.to(images)[:, None, None, None].expand(len(images), 1, 1, 1)
        return torch.cat([values, images[:, 1:]], dim=1)


def described(parameters: Any) -> list[tuple[bool, int, int]]:
    """Return whether each row of the parameters of a flip, then a shift, is flipped, and its shift."""
    flip, shift = parameters.parts
    return [(bool(side), int(x), int(y)) for side, (x, y) in zip(flip.flipped, shift.shift, strict=True)]


def table_of(classifier: apac.Classifier, images: Tensor, values: int) -> tuple[Tensor, float]:
    """Return the log-probabilities of the images for each value, (values, N, K), and the seconds of one value."""
    classifier = classifier.prepared(images, values)
    parts, started = [], time.monotonic()
    for value in range(values):
        parts.append(classifier.score(images, value, value + 1).log_mean)
        print(f"\r{value + 1} of {values} values, {time.monotonic() - started:.0f} s", end="", file=sys.stderr)
    print(file=sys.stderr)
    return torch.stack(parts), (time.monotonic() - started) / values


class Ways:
    """The ways to decide images by the table of their log-probabilities, with the labels."""

    def __init__(self, table: Tensor, labels: Tensor, picked: Picked) -> None:
        self.labels, self.table = labels, table
        self.classifier = apac.Classifier(self._looked_up, picked, CERTIFIED, outputs="log-probabilities")
        side = {(flipped, *move): row for row, (flipped, *move) in enumerate(picked.rows)}
        plain = side[False, 0, 0]
        numbers = torch.arange(len(labels), dtype=torch.float64)
        self.images = torch.stack([torch.full_like(numbers, plain), numbers], dim=1)[:, :, None, None]
        self.weights = {"plain": {plain: 1.0}}
        # airbench shifts and then mirrors; the deformation mirrors and then shifts, which is to the other side.
        self.weights["six views"] = {side[f, -x if f else x, y]: w for f in (False, True) for x, y, w in SIX_VIEWS}
        self.weights["all values"] = {row: 1 / len(table) for row in range(len(table))}

    def _looked_up(self, picked: Tensor) -> Tensor:
        value, image = picked.flatten(1).long().unbind(1)
        return self.table[value, image]

    def scores(self) -> dict[str, tuple[float, Tensor]]:
        """Return the passes and the scores of each way."""
        found: dict[str, tuple[float, Tensor]] = {}
        for name, weights in self.weights.items():
            mean = sum(weight * self.table[row] for row, weight in weights.items())
            assert isinstance(mean, Tensor)
            found[name] = (len(weights), mean)
        sums: Scores | None = None
        for number in PASSES:
            more = self.classifier.score(self.images, sums.passes if sums else 0, number)
            sums = more if sums is None else sums.merge(more)
            for rule in ("product", "sum"):
                found[f"{rule}, M = {number}"] = (number, logarithms(rule, sums.log_mean, sums.probability_mean))
        decision = self.classifier.decide(self.images)
        found["certified"] = (float(decision.passes.double().mean()), decision.log_scores)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("run", help="a folder of apac train, or a network that is shipped")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    run = apac.load(options.run, paper_rule=True)
    kinds = [type(part) for part in getattr(run.deformation, "parts", ())]
    if kinds != [apac.Flip, apac.Shift]:
        parser.error(f"the deformation of {options.run} must be Compose(Flip, Shift), got {run.deformation}.")
    values = run.deformation.values(run.image_shape)
    if values is None or not run.deformation.parts[1].max_shift:
        parser.error(f"{run.deformation} must have equally likely values, with shifts by a pixel.")
    picked = Picked(run.deformation, run.image_shape)
    classifier = run.classifier(rule=apac.Exhaustive(), paper_rule=True)
    sets: list[LabeledImages] = [images_to_test(run), images_held_out(run)]
    ways, seconds = [], 0.0
    for part in sets:
        table, each = table_of(classifier, part.images, trees.size(run.deformation.values(run.image_shape)))
        ways.append(Ways(table, part.labels, picked).scores())
        seconds = seconds or each
    test, held_out = ways
    labels = sets[0].labels
    rules = [
        calibrate(name, test[name][0], test[name][1], labels, (held_out[name][1], sets[1].labels)) for name in test
    ]
    rows = [row(found, rule, rules, labels, seconds) for found, rule in zip(measure(rules, labels), rules, strict=True)]
    print(HEADER)
    for found in rows:
        print(
            f"{found['rule']:>20} {found['error']:8.2%} {found['nll']:7.4f} {found['nll_change']:+7.4f} "
            f"{found['nll_change_error']:7.4f} {found['corrected']:9} {found['corrupted']:9} {found['passes']:7.1f} "
            f"{found['seconds']:7.1f}"
        )
    if options.json is not None:
        payload = {"run": run.settings.to_json(), "history": [vars(epoch) for epoch in run.history], "ways": rows}
        write_json(options.json, payload | {"written": provenance.describe()})


def row(
    found: Measures, rule: CalibratedScores, rules: list[CalibratedScores], labels: Tensor, seconds: float
) -> dict[str, Any]:
    """Return the results of one way; its calibrated likelihood is compared with that of the six views."""
    six = next(other for other in rules if other.rule == "six views")
    own, other = (part.scores.div(part.temperatures[:, None]).log_softmax(1) for part in (rule, six))
    change = (other - own).gather(1, labels[:, None])[:, 0]
    right, right_by_six = rank(rule.scores)[:, 0] == labels, rank(six.scores)[:, 0] == labels
    return {
        "rule": found.rule,
        "passes": found.passes,
        "seconds": found.passes * seconds,
        "error": found.error.value,
        "error_interval": found.error_interval,
        "nll": found.calibrated.nll.value,
        "nll_change": float(change.mean()),  # against the six views
        "nll_change_error": float(change.std() / len(labels) ** 0.5),
        "mcnemar_six_views": mcnemar(int((right & ~right_by_six).sum()), int((right_by_six & ~right).sum())),
        "corrected": found.corrected,
        "corrupted": found.corrupted,
        "mcnemar": found.mcnemar,
        "temperature": found.temperature,
        "uncalibrated_nll": found.uncalibrated.nll.value,
    }


if __name__ == "__main__":
    main()
