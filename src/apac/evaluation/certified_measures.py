"""Measures of certified decisions: their probabilities, and the accuracy of settled answers and the others."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from apac.classify.classifier import Classifier
from apac.classify.decision import Decision
from apac.classify.rules.certified import Certified
from apac.classify.scores import logarithms
from apac.evaluation.intervals import binomial_interval
from apac.evaluation.measures import Measures, calibrate, measure
from apac.evaluation.reliability import Reliability, measure_reliability
from apac.progress import Progress, no_progress


@dataclass(frozen=True)
class Answers:
    """How many of some answers are right."""

    images: int
    right: int
    accuracy: float | None  # None without images
    interval: tuple[float, float]  # of the accuracy: exact, 95 %

    @staticmethod
    def of(correct: Tensor) -> Answers:
        """Count the right answers, a mask (n,)."""
        images, right = len(correct), int(correct.sum())
        return Answers(images, right, right / images if images else None, binomial_interval(right, images))


@dataclass(frozen=True, eq=False)
class CertifiedMeasures:
    """The plain prediction and the certified rule on the images that both decide."""

    measures: tuple[Measures, ...]  # plain, certified; none if no image is decided
    settled: Answers  # more passes would not change the answer, which may be wrong
    not_settled: Answers
    held_out: int  # images on which the temperatures were fitted; 0 if they are cross-fitted in fifths
    reliability: tuple[Reliability, ...]

    def to_json(self) -> dict[str, Any]:
        """Return all numbers, ready for `json.dumps`."""
        payload = {"settled": asdict(self.settled), "not_settled": asdict(self.not_settled), "held_out": self.held_out}
        return payload | {"measures": [part.to_json() for part in self.measures]}


def measure_certified(
    classifier: Classifier,
    decision: Decision,
    plain: Tensor,
    labels: Tensor,
    *,
    held_out: tuple[Tensor, Tensor] | None = None,
    progress: Progress = no_progress,
) -> CertifiedMeasures:
    """Measure certified decisions of images with labels (N,) and plain log-probabilities (N, K).

    The temperatures are fitted on `held_out` (images, labels) that the network was not trained on, which are decided
    like the others or, without those, by cross-fitting.
    """
    correct = decision.labels == labels
    settled, at_limit = (
        torch.tensor([stopped == reason for stopped in decision.stopped]) for reason in ("certified", "limit")
    )
    decided = decision.labels >= 0
    fitted_on: list[tuple[Tensor, Tensor] | None] = [None, None]
    if held_out is not None:
        held_out_decision = _decide_held_out(classifier, held_out[0], progress)
        usable = held_out_decision.labels >= 0
        pair = (classifier.plain(held_out[0]), _scores(held_out_decision))
        fitted_on = [(scores[usable], held_out[1][usable]) for scores in pair]
    measures: tuple[Measures, ...] = ()
    measured: tuple[Reliability, ...] = ()
    if decided.any():
        chosen, seed = decision.select(decided.nonzero()[:, 0]), classifier.seed
        truth, passes = labels[decided], float(chosen.passes.double().mean())
        rules = [
            calibrate("plain", 1, plain[decided], truth, fitted_on[0]),
            calibrate("certified", passes, _scores(chosen), truth, fitted_on[1]),
        ]
        measures = measure(rules, truth, seed=seed)
        measured = (
            measure_reliability(
                decision.combine,
                None,
                chosen.log_probabilities,
                chosen.labels == truth,
                temperature=decision.temperature,
                deformation=classifier.deformation,
                certified=classifier.rule if isinstance(classifier.rule, Certified) else None,
            ),
        )
    return CertifiedMeasures(
        measures=measures,
        settled=Answers.of(correct[settled]),
        not_settled=Answers.of(correct[at_limit]),
        held_out=0 if held_out is None else len(held_out[0]),
        reliability=measured,
    )


def _decide_held_out(classifier: Classifier, images: Tensor, progress: Progress) -> Decision:
    def report(task: str, done: int, total: int, note: str = "") -> None:
        progress(f"{task} held-out images", done, total, note)

    return classifier.decide(images, progress=report, across_ranks=True)


def _scores(decision: Decision) -> Tensor:
    return logarithms(decision.combine, decision.log_scores, decision.mean_probabilities)
