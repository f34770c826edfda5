"""One recipe from data to report: train twice, evaluate, draw, write. Stopped anywhere, it goes on from there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from apac import data
from apac.data.base import Dataset
from apac.errors import InputError
from apac.evaluation.certified import CertifiedEvaluation, evaluate_certified
from apac.evaluation.fixed import Evaluation, evaluate
from apac.evaluation.score_cache import cache_key
from apac.paper.recipes import LABELS, ORIGINAL, TABLE, Recipe
from apac.progress import Progress, no_progress
from apac.runs import folder as run_folder
from apac.runs.run import Run, train

EXPECTED = 32  # passes that an image takes until it is certain, or more


@dataclass(frozen=True, eq=False)
class Result:
    """What one recipe came to: for each of its two trainings the run and its evaluation."""

    recipe: Recipe
    dataset: Dataset
    run: Run
    evaluation: Evaluation
    other_run: Run
    other: Evaluation  # plain only for original data: without deformation there is nothing to average
    certified: tuple[CertifiedEvaluation, ...]
    training: float  # seconds, of both runs
    deciding: float  # seconds, of all passes whenever they were made


def plan(
    recipe: Recipe,
    out: Path,
    *,
    epochs: int | None = None,
    hours: float | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> Recipe:
    """The recipe as it can be made in `out`, or a refusal; changes nothing.

    With so many epochs, or as many as both trainings can make in so many hours; a training that is resumed keeps its
    number.
    """
    if resume and overwrite:
        raise InputError("choose --resume to go on with a report or --overwrite to replace it, not both.")
    if any((out / name / "runs").is_dir() for name in TABLE):
        row = f"{out / recipe.name}, or " if recipe.name in TABLE else ""
        raise InputError(f"{out} holds the paper's table, with a folder for each recipe; choose {row}another folder.")
    dataset = data.load(recipe.deformed.data, progress=progress)
    own, others = _runs(recipe, out)
    if resume and others:
        raise InputError(f"{out} holds the report of another recipe; choose another folder.")
    if not (resume or overwrite) and (own or others or (out / "report.html").exists()):
        raise InputError(
            f"{out} already holds a report or a part of one; go on with it by --resume, replace it by --overwrite, "
            f"or choose another folder."
        )
    first = out / "runs" / next(iter(recipe.trainings))
    if epochs is not None:
        recipe = recipe.with_epochs(epochs)
    elif resume and first in own:
        recipe = recipe.with_epochs(run_folder.read_config(first).epochs)
    elif hours is not None:
        recipe = recipe.within(hours, dataset.train_images)
    for name, config in recipe.trainings.items():
        run_folder.check_free(out / "runs" / name, config, resume=resume, overwrite=overwrite)
    return recipe


def outline(recipe: Recipe) -> str:
    """What is to be made, in a sentence."""
    (first, config), (other, beside) = recipe.trainings.items()
    return (
        f"{recipe.name}: {config.epochs:,} epochs with {LABELS[first]} and {beside.epochs:,} with {LABELS[other]}, "
        f"then M up to {max(recipe.passes):,}."
    )


def clear(recipe: Recipe, out: Path) -> None:
    """Remove the runs of a report, and nothing else that the folder may hold."""
    for folder in chain(*_runs(recipe, out)):
        run_folder.discard(folder)


def reproduce(recipe: Recipe, out: Path, *, resume: bool = False, progress: Progress = no_progress) -> Result:
    """Train and evaluate what was planned, with runs and scores kept in `out`."""
    dataset = data.load(recipe.deformed.data, progress=progress)
    folders = [out / "runs" / name for name in recipe.trainings]
    runs, evaluations, deciding = [], [], 0.0
    for folder, (name, config) in zip(folders, recipe.trainings.items(), strict=True):
        runs.append(train(config, folder, resume=resume, progress=_named(progress, LABELS[name])))
    for folder, run in zip(folders, runs, strict=True):
        named = _named(progress, LABELS[folder.name])
        passes = () if run.config.deformation == ORIGINAL else recipe.passes
        images = run.normalize(dataset.test_images)
        classifier = run.classifier(seed=run.config.seed)
        keep = run_folder.scores_of(folder)
        evaluation = evaluate(classifier, images, dataset.test_labels, passes, cache=keep, progress=named)
        evaluations.append(evaluation)
        deciding += evaluation.seconds
    certified = _certify(recipe, runs[0], dataset, run_folder.scores_of(folders[0]), progress)
    return Result(
        recipe=recipe,
        dataset=dataset,
        run=runs[0],
        evaluation=evaluations[0],
        other_run=runs[1],
        other=evaluations[1],
        certified=certified,
        training=sum(run.history[-1].seconds for run in runs),
        deciding=deciding + sum(certainty.seconds for certainty in certified),
    )


def _certify(
    recipe: Recipe, run: Run, dataset: Dataset, keep: Path, progress: Progress
) -> tuple[CertifiedEvaluation, ...]:
    images, seed = run.normalize(dataset.test_images), run.config.seed
    keys = [cache_key(run.classifier(seed=seed), images, rule) for rule in recipe.certified]
    files = [keep / f"certified-{key}.safetensors" for key in keys]
    ready = run.classifier(seed=seed)
    if not all(file.exists() for file in files):
        ready = ready.prepared(images, EXPECTED * len(files))
    found = []
    for rule, file in zip(recipe.certified, files, strict=True):
        named = _named(progress, f"certified, error {rule.error:g}")
        found.append(
            evaluate_certified(replace(ready, rule=rule), images, dataset.test_labels, cache=file, progress=named)
        )
    return tuple(found)


def _named(progress: Progress, name: str) -> Progress:
    return lambda task, done, total, note="": progress(f"{task}, {name}", done, total, note)


def _runs(recipe: Recipe, out: Path) -> tuple[list[Path], list[Path]]:
    """The runs in `out` that are this recipe's trainings, and those of another recipe."""
    found = [out / "runs" / name for name in LABELS if run_folder.holds_run(out / "runs" / name)]
    own = [folder for folder in found if folder.name in recipe.trainings]
    return own, [folder for folder in found if folder not in own]
