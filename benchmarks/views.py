"""Compare ways to decide by a network that was trained with flips and shifts by whole pixels, or other deformations.

    python benchmarks/views.py runs/cifar10-modern --json views.json

They are the plain prediction, the six fixed views of airbench (the image itself and two diagonal shifts by one pixel,
and the mirror images of these three), all values of the deformation (`apac.Exhaustive`) if it is a flip and then a
shift, and APAC with a fixed and with a certified number of passes. Every value of the deformation, or each of its first
256 passes and of the views, is evaluated once, on the test images and on the images that training held out, on which
the temperatures are fitted. All ways decide from this table: a pass has one of its rows. The seconds of a way are its
passes times the measured seconds of one value, or of one pass or view.
"""

from __future__ import annotations

import argparse
import sys
import time
from abc import abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import apac
from apac import randomness
from apac.classify.scores import Scores, logarithms, rank
from apac.deform.base import Deformation
from apac.evaluation.intervals import mcnemar
from apac.evaluation.measures import CalibratedScores, Measures, calibrate, measure
from apac.runs import provenance
from apac.runs.labeled_images import LabeledImages, images_held_out, images_to_test
from apac.runs.storage import write_json

PASSES = (1, 4, 16, 64, 256)
CERTIFIED = apac.Certified(0.01, limit=4096)
VIEW_RULES = ("plain", "six views")
VIEWS = apac.Compose(apac.Flip(), apac.Shift(1))  # its values include the six views
# Right, down and the weight of a view and of its mirror image (airbench's infer_mirror_translate). The mean of logits
# and that of log-probabilities have the same softmax.
SIX_VIEWS = ((0, 0, 1 / 4), (-1, -1, 1 / 8), (1, 1, 1 / 8))

HEADER = "          decided by    error     NLL  to six    s.e. corrected corrupted  passes seconds"


class Row(Deformation):
    """Replaces the first channel of an image, which is (row, number of the image) here, by the row of a pass."""

    def sample(self, n: int, image_shape: tuple[int, int, int], *, generator: torch.Generator) -> Tensor:
        return torch.tensor([self.row(generator)]).expand(n)

    @abstractmethod
    def row(self, generator: torch.Generator) -> int:
        """Return the row of the table that a pass with this generator has."""

    def apply(self, images: Tensor, parameters: Tensor) -> Tensor:
        values = parameters.to(images)[:, None, None, None].expand(len(images), 1, 1, 1)
        return torch.cat([values, images[:, 1:]], dim=1)


class RowOfValue(Row):
    """For a table of all values: the row of the value that the deformation draws."""

    def __init__(self, deformation: Deformation, image_shape: tuple[int, int, int]) -> None:
        self.deformation, self.image_shape = deformation, image_shape
        self.rows = described(deformation.values(image_shape))

    def row(self, generator: torch.Generator) -> int:
        return self.rows.index(*described(self.deformation.sample(1, self.image_shape, generator=generator)))


class RowOfPass(Row):
    """For a table of the first passes: the row of the pass with this generator."""

    def __init__(self, seed: int) -> None:
        self.numbers = {randomness.generator(seed, "pass", m).initial_seed(): m for m in range(PASSES[-1])}

    def row(self, generator: torch.Generator) -> int:
        return self.numbers[generator.initial_seed()]


def described(parameters: Any) -> list[tuple[bool, int, int]]:
    """Return whether each row of the parameters of a flip, then a shift, is flipped, and its shift."""
    flip, shift = parameters.parts
    return [(bool(side), int(x), int(y)) for side, (x, y) in zip(flip.flipped, shift.shift, strict=True)]


def table_of(classifier: apac.Classifier, images: Tensor, rows: list[int]) -> tuple[Tensor, float]:
    """Return the log-probabilities of the images in these passes, (rows, N, K), and the seconds of one."""
    classifier = classifier.prepared(images, len(rows))
    parts, started = [], time.monotonic()
    for row in rows:
        parts.append(classifier.score(images, row, row + 1).log_mean)
        print(f"\r{len(parts)} of {len(rows)} rows, {time.monotonic() - started:.0f} s", end="", file=sys.stderr)
    print(file=sys.stderr)
    return torch.stack(parts), (time.monotonic() - started) / len(rows)


@dataclass(frozen=True)
class Table:
    """The log-probabilities of some images, (rows, N, K), and which rows the ways to decide them have."""

    log_probabilities: Tensor
    seconds: float  # of one pass
    view_seconds: float  # of one view
    views: dict[tuple[bool, int, int], int]  # the row of a flip and a shift
    row_of_pass: Row
    all_values: bool  # whether the rows are all values of the deformation
    rule: apac.Certified

    @staticmethod
    def of_values(run: apac.Run, images: Tensor) -> Table:
        """Return the table of all values of a flip and a shift."""
        picked = RowOfValue(run.deformation, run.image_shape)
        classifier = run.classifier(rule=apac.Exhaustive(), paper_rule=True)
        table, seconds = table_of(classifier, images, list(range(len(picked.rows))))
        views = {view: row for row, view in enumerate(picked.rows)}
        return Table(table, seconds, seconds, views, picked, True, CERTIFIED)

    @staticmethod
    def of_passes(run: apac.Run, images: Tensor) -> Table:
        """Return the table of the first passes of any deformation, and of the views."""
        classifier = run.classifier(paper_rule=True)
        passes, seconds = table_of(classifier, images, list(range(PASSES[-1])))
        sides = described(VIEWS.values(run.image_shape))
        needed = [side for side in sides if side in weights_of_views()]
        fixed = replace(classifier, deformation=VIEWS, rule=apac.Exhaustive())
        views, view_seconds = table_of(fixed, images, [sides.index(side) for side in needed])
        rows = {side: len(passes) + row for row, side in enumerate(needed)}
        rule = replace(CERTIFIED, limit=PASSES[-1])
        table = torch.cat([passes, views])
        return Table(table, seconds, view_seconds, rows, RowOfPass(classifier.seed), False, rule)

    def scores(self) -> dict[str, tuple[float, Tensor]]:
        """Return the passes and the scores of each way."""
        table = self.log_probabilities
        found: dict[str, tuple[float, Tensor]] = {}
        for name, weights in (("plain", {(False, 0, 0): 1.0}), ("six views", weights_of_views())):
            parts = [weight * table[self.views[view]] for view, weight in weights.items()]
            found[name] = (len(weights), torch.stack(parts).sum(dim=0))
        if self.all_values:
            found["all values"] = (len(table), table.mean(dim=0))
        classifier = apac.Classifier(self._looked_up, self.row_of_pass, self.rule, outputs="log-probabilities")
        numbers = torch.arange(table.shape[1], dtype=torch.float64)
        plain = torch.full_like(numbers, self.views[False, 0, 0])
        images = torch.stack([plain, numbers], dim=1)[:, :, None, None]
        sums: Scores | None = None
        for number in PASSES:
            more = classifier.score(images, sums.passes if sums else 0, number)
            sums = more if sums is None else sums.merge(more)
            for rule in ("product", "sum"):
                found[f"{rule}, M = {number}"] = (number, logarithms(rule, sums.log_mean, sums.probability_mean))
        decision = classifier.decide(images)
        found["certified"] = (float(decision.passes.double().mean()), decision.log_scores)
        return found

    def _looked_up(self, picked: Tensor) -> Tensor:
        row, image = picked.flatten(1).long().unbind(1)
        return self.log_probabilities[row, image]


def weights_of_views() -> dict[tuple[bool, int, int], float]:
    """Return the weights of the six views, by flip and shift.

    airbench shifts and then mirrors; a deformation mirrors and then shifts, which is to the other side.
    """
    return {(flip, -x if flip else x, y): weight for flip in (False, True) for x, y, weight in SIX_VIEWS}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("run", help="a folder of apac train, or a network that is shipped")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    run = apac.load(options.run, paper_rule=True)
    kinds = [type(part) for part in getattr(run.deformation, "parts", ())]
    has_all_values = kinds == [apac.Flip, apac.Shift] and run.deformation.values(run.image_shape) is not None
    if has_all_values and not run.deformation.parts[1].max_shift:
        parser.error(f"{run.deformation} must have shifts by a pixel.")
    if run.deformation.preprocesses:
        parser.error("the views are of images as they are, but the deformation of this run preprocesses them.")
    if not run.config.validation_fraction:
        parser.error("this run held out no images to fit the temperatures on; train it with --validation-fraction.")
    sets: list[LabeledImages] = [images_to_test(run), images_held_out(run)]
    tables = [(Table.of_values if has_all_values else Table.of_passes)(run, part.images) for part in sets]
    test, held_out = (table.scores() for table in tables)
    labels = sets[0].labels
    rules = [
        calibrate(name, test[name][0], test[name][1], labels, (held_out[name][1], sets[1].labels)) for name in test
    ]
    rows = []
    for found, rule in zip(measure(rules, labels), rules, strict=True):
        seconds = tables[0].view_seconds if found.rule in VIEW_RULES else tables[0].seconds
        rows.append(row(found, rule, rules, labels, seconds))
    print(HEADER)
    for found in rows:
        print(
            f"{found['rule']:>20} {found['error']:8.2%} {found['nll']:7.4f} {found['nll_change']:+7.4f} "
            f"{found['nll_change_error']:7.4f} {found['corrected']:9} {found['corrupted']:9} {found['passes']:7.1f} "
            f"{found['seconds']:7.1f}"
        )
    if options.json is not None:
        payload = {"run": run.settings.to_json(), "history": [vars(epoch) for epoch in run.history], "ways": rows}
        payload["certified"] = {"error": tables[0].rule.error, "limit": tables[0].rule.limit}
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
