"""A shipped network on the full test set of its data: an effect that a small data set cannot show in minutes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from apac.classify.classifier import Classifier
from apac.data.base import Dataset
from apac.evaluation.calibration import with_temperature
from apac.evaluation.fixed import Evaluation, evaluate
from apac.evaluation.measures import Measures
from apac.paper.recipe import SHOWCASE_PASSES
from apac.progress import Progress, no_progress
from apac.reporting.figures.corrected import Corrected, most_improved
from apac.runs.labeled_images import images_held_out
from apac.runs.run import Run


@dataclass(frozen=True, eq=False)
class Showcase:
    """A shipped network on its test images, decided plainly and by APAC with the largest M."""

    run: Run
    classifier: Classifier
    evaluation: Evaluation  # calibrated on held-out training images
    example: Corrected | None  # the corrected image whose true class gains the most probability

    @property
    def plain(self) -> Measures:
        """The measures of the plain prediction."""
        return self.evaluation.measures_of("plain")

    @property
    def apac(self) -> Measures:
        """The measures of APAC with the largest M."""
        return self.evaluation.measures_of("product")

    def to_json(self) -> dict[str, Any]:
        """Return all numbers, ready for `json.dumps`."""
        return {"network": self.run.network_name, "data": self.run.data, "evaluation": self.evaluation.to_json()}


def evaluate_showcase(
    run: Run, dataset: Dataset, *, seed: int, cache: Path, progress: Progress = no_progress
) -> Showcase:
    """Evaluate a run on the test images of its data set. The sums of passes are stored in the folder `cache`."""
    held_out = images_held_out(run, progress=progress)
    classifier = run.classifier(seed=seed, paper_rule=True)
    images, labels = run.normalize(dataset.test_images), dataset.test_labels
    evaluation = evaluate(
        classifier,
        images,
        labels,
        SHOWCASE_PASSES,
        held_out=(held_out.images, held_out.labels),
        cache=cache,
        progress=progress,
    )
    assert evaluation.scores is not None
    showcase = Showcase(run, classifier, evaluation, example=None)
    if not evaluation.corrected:
        return showcase
    plain = with_temperature(classifier.plain(images), showcase.plain.temperature)
    apac = with_temperature(evaluation.scores.log_mean, showcase.apac.temperature)
    example = most_improved(
        evaluation.corrected,
        labels,
        dataset.test_images,
        images,
        plain.exp(),
        apac.exp(),
        passes=SHOWCASE_PASSES[-1],
        classes=run.classes,
    )
    return replace(showcase, example=example)
