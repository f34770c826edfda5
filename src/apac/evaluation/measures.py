"""Error, likelihood, calibration and risk of each rule, compared with the plain prediction, with standard errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from apac.classify.scores import rank
from apac.evaluation.calibration import (
    BINS,
    Bin,
    brier_score,
    cross_fit_temperatures,
    fit_temperature,
    negative_log_likelihood,
    reliability,
    with_temperature,
)
from apac.evaluation.intervals import binomial_interval, mcnemar, resampled_weights
from apac.evaluation.selective import RiskCoverage

RISK = 0.01  # of `coverage`
OF_DECISIONS = ("error", "top2")
OF_PROBABILITIES = ("nll", "brier", "calibration_error", "aurc", "augrc", "coverage")


@dataclass(frozen=True, eq=False)
class CalibratedScores:
    """The log-scores of labeled images, from which a rule decides and computes probabilities."""

    rule: str  # "plain", "product", "sum" or "certified"
    passes: float  # mean, if images differ
    scores: Tensor  # (N, K) float64; their softmax is the probability of each class
    temperatures: Tensor  # (N,) which calibrate the probability; not fitted on the image itself


@dataclass(frozen=True)
class Estimate:
    """A measure on a sample of images, with standard errors by the bootstrap over images."""

    value: float
    standard_error: float
    change: float  # difference to the plain prediction
    change_error: float  # standard error of the change: images are paired


@dataclass(frozen=True, eq=False)
class ProbabilityMeasures:
    """How good the probabilities are: small is good, but for the coverage."""

    nll: Estimate  # negative log-likelihood
    brier: Estimate  # squared distance between the probabilities and the label, 0 to 2
    calibration_error: Estimate  # expected calibration error, 15 bins
    aurc: Estimate  # area under the risk-coverage curve
    augrc: Estimate  # area under the generalized risk-coverage curve
    coverage: Estimate  # share of the images, the most probable answers first, that has an error of at most 1 %
    bins: tuple[Bin, ...] = field(repr=False)  # of the reliability diagram
    curve: RiskCoverage = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return all numbers but the curve, ready for `json.dumps`."""
        bins = {name: [getattr(part, name) for part in self.bins] for name in ("images", "confidence", "accuracy")}
        return {name: asdict(getattr(self, name)) for name in OF_PROBABILITIES} | {"bins": bins}


@dataclass(frozen=True, eq=False)
class Measures:
    """The measures of one rule on labeled images."""

    rule: str  # "plain", "product", "sum" or "certified"
    passes: float
    error: Estimate
    error_interval: tuple[float, float]  # exact, 95 %
    top2: Estimate  # error; the label is not among the top 2 classes
    corrected: int  # images that are wrong in the plain prediction and right by this rule
    corrupted: int  # the other way round
    mcnemar: float  # p-value of the exact test on these two numbers
    temperature: float  # that calibrates; the geometric mean of cross-fitted ones
    uncalibrated: ProbabilityMeasures
    calibrated: ProbabilityMeasures  # after the temperature

    def to_json(self) -> dict[str, Any]:
        """Return all numbers, ready for `json.dumps`."""
        nested = ("error", "top2", "uncalibrated", "calibrated")
        payload = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in nested}
        payload |= {name: asdict(getattr(self, name)) for name in OF_DECISIONS}
        return payload | {name: getattr(self, name).to_json() for name in ("uncalibrated", "calibrated")}

    def columns(self) -> dict[str, float]:
        """Return the numbers of a line of a CSV file, but for the errors; _se is a standard error."""
        columns = {"error_low": self.error_interval[0], "error_high": self.error_interval[1]}
        columns |= {name: getattr(self, name) for name in ("corrected", "corrupted", "mcnemar", "temperature")}
        for prefix, part in (("", self.uncalibrated), ("calibrated_", self.calibrated)):
            for name in OF_PROBABILITIES:
                estimate: Estimate = getattr(part, name)
                columns |= {f"{prefix}{name}": estimate.value, f"{prefix}{name}_se": estimate.standard_error}
        return columns


def calibrate(
    rule: str, passes: float, scores: Tensor, labels: Tensor, held_out: tuple[Tensor, Tensor] | None
) -> CalibratedScores:
    """Return the scores of labeled images with temperatures that calibrate them.

    They are fitted on the scores and labels of held-out images or, without those, by cross-fitting in fifths.
    """
    if held_out is None:
        return CalibratedScores(rule, passes, scores, cross_fit_temperatures(scores, labels))
    return CalibratedScores(
        rule, passes, scores, torch.full((len(scores),), fit_temperature(*held_out), dtype=torch.float64)
    )


def measure(rules: Sequence[CalibratedScores], labels: Tensor, *, seed: int = 0) -> tuple[Measures, ...]:
    """Measure several rules on the same images with labels (N,), the plain prediction first.

    >>> scores = torch.tensor([[0.9, 0.1], [0.6, 0.4]], dtype=torch.float64).log()
    >>> plain = CalibratedScores("plain", 1, scores, torch.ones(2))
    >>> measures, = measure([plain], torch.tensor([0, 1]))
    >>> measures.error.value, round(measures.uncalibrated.nll.value, 3)  # the mean of -ln 0.9 and -ln 0.4
    (0.5, 0.511)
    """
    samples = [_Sample.of(rule, labels) for rule in rules]
    values = [sample.statistics(torch.ones(1, len(labels), dtype=torch.float64))[0] for sample in samples]
    drawn: list[list[Tensor]] = [[] for _ in samples]
    for weights in resampled_weights(len(labels), seed):
        for number, sample in enumerate(samples):
            drawn[number].append(sample.statistics(weights))
    resampled = [torch.cat(parts) for parts in drawn]  # (resamples, statistics) each
    return tuple(
        _measures(rule, sample, _estimates(value, resampled_value, values[0], resampled[0]), samples[0])
        for rule, sample, value, resampled_value in zip(rules, samples, values, resampled, strict=True)
    )


def _estimates(value: Tensor, resampled: Tensor, plain: Tensor, plain_resampled: Tensor) -> list[Estimate]:
    columns = (value, resampled.std(dim=0), value - plain, (resampled - plain_resampled).std(dim=0))
    return [Estimate(*numbers) for numbers in torch.stack(columns, dim=1).tolist()]


def _measures(rule: CalibratedScores, sample: _Sample, estimates: list[Estimate], plain: _Sample) -> Measures:
    corrected, corrupted = int((sample.correct & ~plain.correct).sum()), int((plain.correct & ~sample.correct).sum())
    decisions, probabilities = len(OF_DECISIONS), len(OF_PROBABILITIES)
    parts = (estimates[decisions : decisions + probabilities], estimates[decisions + probabilities :])
    both = [
        ProbabilityMeasures(**dict(zip(OF_PROBABILITIES, part, strict=True)), bins=outcome.bins, curve=outcome.curve)
        for part, outcome in zip(parts, sample.outcomes, strict=True)
    ]
    return Measures(
        rule=rule.rule,
        passes=rule.passes,
        error=estimates[0],
        error_interval=binomial_interval(int((~sample.correct).sum()), len(sample.correct)),
        top2=estimates[1],
        corrected=corrected,
        corrupted=corrupted,
        mcnemar=mcnemar(corrected, corrupted),
        temperature=float(rule.temperatures.double().log().mean().exp()),
        uncalibrated=both[0],
        calibrated=both[1],
    )


@dataclass(frozen=True, eq=False)
class _Sample:
    """What the statistics of a rule are computed from."""

    correct: Tensor  # (N,)
    wrong: Tensor  # (N, 2) float64: the label is not the best class; not among the best two
    outcomes: tuple[_Outcome, _Outcome]  # without and with the temperature

    @staticmethod
    def of(rule: CalibratedScores, labels: Tensor) -> _Sample:
        missed = rank(rule.scores)[:, :2] != labels[:, None]
        wrong = torch.stack([missed[:, 0], missed.all(dim=1)], dim=1)
        temperatures = (torch.ones_like(rule.temperatures), rule.temperatures)
        plain, calibrated = (with_temperature(rule.scores, temperature) for temperature in temperatures)
        correct = ~missed[:, 0]
        outcomes = (_Outcome.of(plain, labels, correct), _Outcome.of(calibrated, labels, correct))
        return _Sample(correct, wrong.double(), outcomes)

    def statistics(self, weights: Tensor) -> Tensor:
        """Return the measures of samples in which the images have weights (B, N), (B, statistics)."""
        means = weights @ self.wrong / weights.shape[1]
        return torch.cat([means, *(outcome.statistics(weights) for outcome in self.outcomes)], dim=1)


@dataclass(frozen=True, eq=False)
class _Outcome:
    """The probabilities of images with known labels."""

    losses: Tensor  # (N, 2): negative log-likelihood, Brier score
    gaps: Tensor  # (N, BINS): confidence minus correctness, in the column of the image's bin
    order: Tensor  # (N,) the most confident images first
    wrong: Tensor  # (N,) in that order, averaged over ties
    bins: tuple[Bin, ...]
    curve: RiskCoverage

    @staticmethod
    def of(log_probabilities: Tensor, labels: Tensor, correct: Tensor) -> _Outcome:
        losses = [loss(log_probabilities, labels) for loss in (negative_log_likelihood, brier_score)]
        confidence = log_probabilities.amax(dim=1).exp()
        bins = reliability(confidence, correct)
        inner = torch.tensor([part.high for part in bins[:-1]], dtype=torch.float64)
        inside = torch.nn.functional.one_hot(torch.bucketize(confidence, inner), BINS)
        curve = RiskCoverage.of(confidence, correct)
        return _Outcome(
            losses=torch.stack(losses, dim=1),
            gaps=inside * (confidence - correct.double())[:, None],
            order=(-confidence).argsort(stable=True),
            wrong=curve.wrong.diff(prepend=torch.zeros(1, dtype=torch.float64)),
            bins=bins,
            curve=curve,
        )

    def statistics(self, weights: Tensor) -> Tensor:
        images = weights.shape[1]
        means = weights @ self.losses / images  # (B, 2)
        calibration_error = (weights @ self.gaps).abs().sum(dim=1) / images
        ordered = weights[:, self.order]
        decided = ordered.cumsum(dim=1)  # (B, N) images, as in `RiskCoverage`
        errors = (ordered * self.wrong).cumsum(dim=1)
        risk = errors / decided.clamp(min=1)
        aurc = (ordered * risk).sum(dim=1) / images
        augrc = (ordered * errors).sum(dim=1) / images**2
        coverage = (decided * (risk <= RISK)).amax(dim=1) / images
        return torch.cat([means, torch.stack([calibration_error, aurc, augrc, coverage], dim=1)], dim=1)
