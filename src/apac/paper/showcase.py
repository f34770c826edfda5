"""A shipped network on the full test set of its data: an effect that a small data set cannot show in minutes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from apac.data.base import Dataset
from apac.evaluation.calibration import fit_temperature, negative_log_likelihood, with_temperature
from apac.evaluation.fixed import Evaluation, evaluate
from apac.progress import Progress, no_progress
from apac.reporting.figures.corrected import Corrected, most_improved
from apac.runs.labeled_images import images_held_out
from apac.runs.run import Run

PASSES = (1, 4, 16)  # half a minute on two cores for cifar10-cnn
QUANTILE = 1.96  # of the normal distribution, for an interval of 95 %


@dataclass(frozen=True)
class Estimate:
    """A mean over images with its 95 % interval, by the normal approximation: there are thousands of images."""

    value: float
    low: float
    high: float

    @staticmethod
    def of(values: Tensor) -> Estimate:
        """Return the mean of one value per image, (N,)."""
        mean, error = float(values.double().mean()), float(values.double().std()) / len(values) ** 0.5
        return Estimate(mean, mean - QUANTILE * error, mean + QUANTILE * error)


@dataclass(frozen=True)
class Compared:
    """A measure of the plain prediction and of APAC. Small is good."""

    plain: Estimate
    apac: Estimate
    difference: Estimate  # plain minus APAC, paired by image

    @staticmethod
    def of(plain: Tensor, apac: Tensor) -> Compared:
        """Compare one value per image of each rule, (N,)."""
        return Compared(Estimate.of(plain), Estimate.of(apac), Estimate.of(plain.double() - apac.double()))


@dataclass(frozen=True, eq=False)
class Showcase:
    """A shipped network on its test images, decided plainly and by APAC with the largest M."""

    run: Run
    evaluation: Evaluation
    error: Compared
    likelihood: Compared  # negative log-likelihood, after the temperatures
    temperatures: tuple[float, float]  # of the plain prediction and of APAC, fitted on held-out training images
    example: Corrected | None  # the corrected image whose true class gains the most probability
    seconds: float  # of all passes, including those of earlier calls

    @property
    def passes(self) -> int:
        """The largest M."""
        return self.evaluation.rows[-1].passes

    def to_json(self) -> dict[str, Any]:
        """Return all numbers, ready for `json.dumps`."""
        return {
            "network": self.run.network_name,
            "data": self.run.data,
            "error": asdict(self.error),
            "calibrated_negative_log_likelihood": asdict(self.likelihood),
            "temperatures": dict(zip(("plain", "apac"), self.temperatures, strict=True)),
            "evaluation": self.evaluation.to_json(),
        }


def evaluate_showcase(
    run: Run, dataset: Dataset, *, seed: int, cache: Path, progress: Progress = no_progress
) -> Showcase:
    """Evaluate a run on the test images of its data set. The sums of passes are stored in the folder `cache`."""
    held_out = images_held_out(run, progress=progress)
    classifier = run.classifier(seed=seed)
    images, labels = run.normalize(dataset.test_images), dataset.test_labels
    fitted = evaluate(classifier, held_out.images, held_out.labels, PASSES, cache=cache)
    evaluation = evaluate(classifier, images, labels, PASSES, cache=cache, progress=progress)
    assert fitted.scores is not None
    assert evaluation.scores is not None
    scores = classifier.plain(images), evaluation.scores.log_mean
    held_out_scores = classifier.plain(held_out.images), fitted.scores.log_mean
    temperatures = [fit_temperature(part, held_out.labels) for part in held_out_scores]
    plain, apac = (with_temperature(part, temperature) for part, temperature in zip(scores, temperatures, strict=True))
    example = None
    if evaluation.corrected:
        probabilities = plain.exp(), apac.exp()
        example = most_improved(
            evaluation.corrected,
            labels,
            dataset.test_images,
            images,
            *probabilities,
            passes=PASSES[-1],
            classes=run.classes,
        )
    return Showcase(
        run=run,
        evaluation=evaluation,
        error=Compared.of(evaluation.plain_labels != labels, evaluation.labels != labels),
        likelihood=Compared.of(*(negative_log_likelihood(part, labels) for part in (plain, apac))),
        temperatures=(temperatures[0], temperatures[1]),
        example=example,
        seconds=fitted.seconds + evaluation.seconds,
    )
