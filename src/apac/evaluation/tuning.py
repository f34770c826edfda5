"""apac.tune: choose the strength, the combination and the temperature on held-out images."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from apac.classify.choice import Candidate, Choice
from apac.classify.classifier import Classifier
from apac.classify.combine import COMBINATIONS, Combine
from apac.classify.rules.base import Rule
from apac.classify.rules.exhaustive import Exhaustive
from apac.classify.rules.fixed import FixedPasses
from apac.classify.scores import Scores, logarithms, rank
from apac.deform.base import Deformation
from apac.errors import InputError
from apac.evaluation.calibration import (
    FOLDS,
    cross_fit_temperatures,
    fit_temperature,
    negative_log_likelihood,
    with_temperature,
)
from apac.evaluation.labels import validate_classes, validate_labels
from apac.progress import Progress, no_progress, part_of
from apac.validation import validate_strength

STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)
PASSES = 64
MIN_IMAGES = 2 * FOLDS
FEW_IMAGES = 200
ROUNDING = 1e-4  # differences in the mean negative log-likelihood that the rounding of a processor may cause

Key = tuple[float, Combine]


@dataclass(frozen=True, eq=False)
class CandidateScores:
    """The scores of labeled images for each candidate: for each M, the values whose softmax are the probabilities."""

    labels: Tensor  # (N,)
    scores: Mapping[Key, Mapping[int, Tensor]]  # (N, K) each; the first key is the plain prediction
    notes: tuple[str, ...]


def tune(
    classifier: Classifier,
    images: Tensor,
    labels: Tensor | Sequence[int],
    *,
    strengths: Sequence[float] = STRENGTHS,
    passes: int | None = None,
    classes: Sequence[str] = (),
    progress: Progress = no_progress,
) -> Choice:
    """Choose how a network decides, on images (N, C, H, W) with labels (N,) that it was not trained on.

    Candidates are the plain prediction, and for each of the `strengths` the product and the sum. All of them use the
    same random numbers. Their negative log-likelihood is compared after a temperature, which for each fifth of the
    images is fitted on the others. The choice is the candidate closest to the paper's rule (strength 1, product) of
    those that are within one standard error of the best. Its probabilities have the temperature that is fitted on all
    images, for each M, or 1 if that is within one standard error too. `passes` defaults to the M of `FixedPasses`. For
    other rules it is 64, or their limit if that is lower. `classes` are names for the notes.

    Never pass the images of the final test: the result would be too good. The classifier must have the deformation of
    the training, which is strength 1: for a tuned run, tune `run.classifier(paper_rule=True)`. `Choice.apply` returns
    the classifier that decides by the choice.

    >>> import apac, torch
    >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    >>> classifier = apac.Classifier(network, apac.presets.mnist())
    >>> choice = apac.tune(classifier, torch.rand(20, 1, 28, 28), torch.arange(20) % 10, passes=4)
    >>> tuned = choice.apply(classifier)
    """
    if passes is None:
        passes = passes_to_compare(classifier.rule)
    labels = validate_labels(images, labels)
    validate_enough(len(labels))
    measured = score_candidates(classifier, images, labels, strengths, passes, progress)
    return choose(measured, passes, classifier.seed, classes=classes)


def passes_to_compare(rule: Rule) -> int:
    """Return the M with which candidates are compared for a rule."""
    sampled = isinstance(rule, FixedPasses) and not isinstance(rule, Exhaustive)
    return rule.limit if sampled else min(PASSES, rule.limit)


def validate_enough(images: int) -> None:
    """Refuse a number of images on which nothing can be compared."""
    if images < MIN_IMAGES:
        raise InputError(
            f"{images} images are too few to tune on; pass at least {MIN_IMAGES}, better some hundreds, that the "
            f"network was not trained on."
        )


def validate_tunable(deformation: Deformation) -> None:
    """Raise InputError for the identity, and for a deformation without `scaled`."""
    if deformation.scaled(0) == deformation:
        raise InputError(
            "there is no deformation, so that every pass is the plain prediction and there is nothing to tune; train "
            "the network with a deformation."
        )


def score_candidates(
    classifier: Classifier,
    images: Tensor,
    labels: Tensor | Sequence[int],
    strengths: Sequence[float] = STRENGTHS,
    passes: int = PASSES,
    progress: Progress = no_progress,
) -> CandidateScores:
    """Return the scores of all candidates, after numbers of passes up to `passes`."""
    labels = validate_labels(images, labels)
    numbers = _prefixes(FixedPasses(passes).passes)
    validate_tunable(classifier.deformation)
    deformations, notes = _scaled(classifier.deformation, strengths)
    # A scaled deformation may have values that are not equally likely, as `Exhaustive` requires.
    classifier = replace(classifier, rule=FixedPasses(passes))
    plain = classifier.plain(images)
    validate_classes(labels, plain.shape[1])
    scores: dict[Key, dict[int, Tensor]] = {(0.0, "product"): {1: plain.double()}}
    prepared = classifier.prepared(images, passes * len(deformations))
    for index, (strength, deformation) in enumerate(deformations.items()):
        candidate = replace(prepared, deformation=deformation)
        total: Scores | None = None
        for combine in COMBINATIONS:
            scores[strength, combine] = {}
        for start, stop in zip((0, *numbers), numbers, strict=False):
            first = index * passes + start
            report = part_of(progress, first, passes * len(deformations), "tuning")
            part = candidate.score(images, start, stop, progress=report)
            total = part if total is None else total.merge(part)
            for combine in COMBINATIONS:
                scores[strength, combine][stop] = logarithms(combine, total.log_mean, total.probability_mean)
    return CandidateScores(labels, scores, notes)


def pool(parts: Sequence[CandidateScores]) -> CandidateScores:
    """Return the scores of the images of all parts, which several networks may have measured."""
    scores = {
        key: {passes: torch.cat([part.scores[key][passes] for part in parts]) for passes in by_passes}
        for key, by_passes in parts[0].scores.items()
    }
    return CandidateScores(torch.cat([part.labels for part in parts]), scores, parts[0].notes)


def choose(
    measured: CandidateScores, passes: int, seed: int, *, tolerance: float = 1.0, classes: Sequence[str] = ()
) -> Choice:
    """Choose the candidate closest to the paper's rule of those within `tolerance` standard errors of the best."""
    labels = measured.labels
    final = {key: by_passes[max(by_passes)] for key, by_passes in measured.scores.items()}
    losses = {key: _cross_fitted_losses(scores, labels) for key, scores in final.items()}  # (N,) each
    best = min(losses.values(), key=lambda loss: float(loss.mean()))
    candidates = {}
    for (strength, combine), loss in losses.items():
        wrong = rank(final[strength, combine])[:, 0] != labels
        temperatures = {m: _temperature(s, labels, tolerance) for m, s in measured.scores[strength, combine].items()}
        candidates[strength, combine] = Candidate(
            strength,
            combine,
            float(wrong.double().mean()),
            *_mean_and_error(loss),
            *_mean_and_error(loss - best),
            tuple(sorted(temperatures.items())),
        )
    chosen = min(
        (c for c in candidates.values() if c.above_best <= tolerance * c.above_best_error + ROUNDING),
        key=_distance_from_paper,
    )
    plain = losses[0.0, "product"]
    return Choice(
        chosen.strength,
        chosen.combine,
        len(labels),
        passes,
        seed,
        *_mean_and_error(plain - losses[chosen.strength, chosen.combine]),
        tuple(candidates.values()),
        (*measured.notes, *_missing(labels, classes or range(final[0.0, "product"].shape[1])), *_few(plain)),
    )


def _scaled(deformation: Deformation, strengths: Sequence[float]) -> tuple[dict[float, Deformation], tuple[str, ...]]:
    """Return the deformation at each strength above 0 that it has, and a note if it lacks some."""
    if not isinstance(strengths, Iterable):
        raise InputError(f"strengths must be a sequence of numbers, such as (0, 0.5, 1), got {strengths!r}.")
    positive = sorted({validate_strength(strength) for strength in strengths} - {0.0})
    if not positive:
        raise InputError(
            f"strengths must have a number above 0, such as (0, 0.5, 1), to compare with the plain prediction, got "
            f"{strengths!r}."
        )
    scaled: dict[float, Deformation] = {}
    refusal: InputError | None = None
    for strength in positive:
        try:
            scaled[strength] = deformation.scaled(strength)
        except InputError as error:
            refusal = error
    if refusal is not None and 1 not in scaled:
        raise refusal
    return scaled, () if refusal is None else (f"Compared without other strengths: {refusal}",)


def _prefixes(passes: int) -> tuple[int, ...]:
    """Return the powers of 4 below the number of passes, and that number."""
    return (*(4**k for k in range(passes.bit_length()) if 4**k < passes), passes)


def _temperature(scores: Tensor, labels: Tensor, tolerance: float) -> float:
    """Return the fitted temperature, or 1 if that is within `tolerance` standard errors of it on other images."""
    untouched = negative_log_likelihood(with_temperature(scores, 1.0), labels)
    gain, error = _mean_and_error(untouched - _cross_fitted_losses(scores, labels))
    return fit_temperature(scores, labels) if gain > tolerance * error + ROUNDING else 1.0


def _cross_fitted_losses(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the negative log-likelihood of each image, (N,), with the temperature of the other four fifths."""
    return negative_log_likelihood(with_temperature(scores, cross_fit_temperatures(scores, labels)), labels)


def _mean_and_error(values: Tensor) -> tuple[float, float]:
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))


def _distance_from_paper(candidate: Candidate) -> tuple[float, float, bool]:
    """Sort by the distance from strength 1, the weaker one first, and then product before sum."""
    return abs(candidate.strength - 1), candidate.strength, candidate.combine != "product"


def _missing(labels: Tensor, classes: Sequence[object]) -> Iterable[str]:
    present = set(labels.tolist())
    missing = [str(name) for number, name in enumerate(classes) if number not in present]
    if missing:
        named = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
        yield f"{len(missing)} of {len(classes)} classes have no images here ({named}), so nothing is known about them."


def _few(plain: Tensor) -> Iterable[str]:
    if len(plain) < FEW_IMAGES:
        yield (
            f"{len(plain)} images are few: the negative log-likelihood of the plain prediction is known to ± "
            f"{_mean_and_error(plain)[1]:.3f}, and the choice may be chance."
        )
