"""Steps of a recipe: train twice, evaluate, then evaluate the showcase. Each can be interrupted and resumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from apac import data
from apac.data.base import Dataset
from apac.errors import InputError, StorageError
from apac.evaluation.certified import CertifiedEvaluation, evaluate_certified
from apac.evaluation.fixed import Evaluation, evaluate
from apac.evaluation.score_cache import cache_key
from apac.paper.recipe import LABELS, ORIGINAL, SHOWCASE_PASSES, Recipe
from apac.paper.recipes import TABLE
from apac.paper.showcase import Showcase, evaluate_showcase
from apac.progress import Progress, no_progress
from apac.runs import folder as run_folder
from apac.runs.folder import RunSettings
from apac.runs.run import Run, load
from apac.runs.train import train
from apac.training.device import choose_device
from apac.training.precision import check_precision

EXPECTED_PASSES = 32  # minimum per image until it is certified


@dataclass(frozen=True, eq=False)
class Result:
    """The results of a recipe: the run and the evaluation of its training and of its baseline."""

    recipe: Recipe
    dataset: Dataset
    run: Run
    evaluation: Evaluation
    baseline_run: Run
    baseline: Evaluation  # plain prediction only, if trained on original data
    certified: tuple[CertifiedEvaluation, ...]
    training_seconds: float  # of both runs
    deciding_seconds: float  # of all passes, including those of earlier calls
    showcase: Showcase | None
    skipped: str  # why the recipe's showcase was not evaluated, in one sentence


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
    """Return the recipe to run in `out`, or raise InputError if the folder cannot be used. Nothing is changed.

    `epochs` replaces the recipe's number of epochs; `hours` selects as many as both runs can finish in that time. A
    resumed run keeps its number of epochs.
    """
    if resume and overwrite:
        raise InputError("choose resume=True to continue a report or overwrite=True to replace it, not both.")
    if not (resume and all(run_folder.is_complete(out / "runs" / name) for name in recipe.trainings)):
        check_precision(recipe.config.precision, choose_device(None))
    if any((out / name / "runs").is_dir() for name in TABLE):
        row = f"{out / recipe.name}, or " if recipe.name in TABLE else ""
        raise InputError(f"{out} holds the paper's table, with a folder for each recipe; choose {row}another folder.")
    dataset = data.load(recipe.data, progress=progress)
    stored, foreign = _stored_runs(recipe, out)
    if resume and foreign:
        raise InputError(f"{out} holds the report of another recipe; choose another folder.")
    if not (resume or overwrite) and (stored or foreign or (out / "report.html").exists()):
        raise InputError(
            f"{out} already holds a report, complete or partial; continue it with resume=True, replace it with "
            f"overwrite=True, or choose another folder."
        )
    first = out / "runs" / next(iter(recipe.trainings))
    if epochs is not None:
        recipe = recipe.with_epochs(epochs)
    elif resume and first in stored:
        recipe = recipe.with_epochs(run_folder.read_settings(first).config.epochs)
    elif hours is not None:
        recipe = recipe.within(hours, dataset.train_images)
    for name, (deformation, config) in recipe.trainings.items():
        settings = RunSettings(recipe.network, recipe.data, deformation, config)
        run_folder.check_free(out / "runs" / name, settings, resume=resume, overwrite=overwrite)
    return recipe


def outline(recipe: Recipe) -> str:
    """Describe the recipe in one sentence."""
    (first, training), (second, baseline) = recipe.trainings.items()
    rules = len(recipe.certified)
    max_passes = max((rule.limit for rule in recipe.certified), default=0)
    certified = f" and {rules} certified rule{'s' * (rules > 1)} of at most {max_passes:,} passes" if rules else ""
    showcase_passes = max(SHOWCASE_PASSES)
    showcase = f"; then {recipe.showcase}, already trained, with M up to {showcase_passes}" if recipe.showcase else ""
    each = ""
    if recipe.baseline != ORIGINAL:  # the baseline is decided by APAC, too
        deformations = sum(len(getattr(d, "sets", (d,))) for d, _ in recipe.trainings.values())
        each = f" for each network and each of its deformations, {deformations} in all"
    return (
        f"{recipe.name}: {training.config.epochs:,} epochs with {LABELS[first]} and {baseline.config.epochs:,} with "
        f"{LABELS[second]}, then M up to {max(recipe.passes):,}{each}{certified}{showcase}."
    )


def clear(recipe: Recipe, out: Path) -> None:
    """Remove the runs of a report. Other files in the folder are not touched."""
    stored, foreign = _stored_runs(recipe, out)
    for folder in stored + foreign:
        run_folder.discard(folder)


def train_runs(
    recipe: Recipe,
    out: Path,
    *,
    resume: bool = False,
    progress: Progress = no_progress,
    should_stop: Callable[[], bool] | None = None,
) -> list[Run]:
    """Run the training and its baseline, each in a folder below `out`/runs."""
    return [
        train(
            recipe.network,
            recipe.data,
            deformation,
            config=config,
            out=out / "runs" / name,
            resume=resume,
            progress=_labeled(progress, LABELS[name]),
            should_stop=should_stop,
        )
        for name, (deformation, config) in recipe.trainings.items()
    ]


def evaluate_runs(recipe: Recipe, runs: list[Run], out: Path, *, progress: Progress = no_progress) -> Result:
    """Evaluate both runs on the test images. The sums of passes are cached in their folders."""
    dataset = data.load(recipe.data, progress=progress)
    evaluations = []
    for name, run in zip(recipe.trainings, runs, strict=True):
        passes = () if run.deformation == ORIGINAL else recipe.passes
        evaluation = evaluate(
            run.classifier(seed=run.config.seed, paper_rule=True),
            run.normalize(dataset.test_images),
            dataset.test_labels,
            passes,
            cache=run_folder.scores_path(out / "runs" / name),
            progress=_labeled(progress, LABELS[name]),
        )
        evaluations.append(evaluation)
    first = out / "runs" / next(iter(recipe.trainings))
    certified = _certified(recipe, runs[0], dataset, run_folder.scores_path(first), progress)
    showcase, skipped = _showcase(recipe, out / "showcase", progress)
    seconds = sum(e.seconds for e in evaluations) + sum(e.seconds for e in certified)
    return Result(
        recipe=recipe,
        dataset=dataset,
        run=runs[0],
        evaluation=evaluations[0],
        baseline_run=runs[1],
        baseline=evaluations[1],
        certified=certified,
        training_seconds=sum(run.history[-1].seconds for run in runs),
        deciding_seconds=seconds + (showcase.evaluation.seconds if showcase else 0.0),
        showcase=showcase,
        skipped=skipped,
    )


def _showcase(recipe: Recipe, cache: Path, progress: Progress) -> tuple[Showcase | None, str]:
    """Evaluate the recipe's showcase, if it has one and its data can be loaded; otherwise say why not."""
    if recipe.showcase is None:
        return None, ""
    run = load(recipe.showcase)
    assert run.data is not None
    try:
        dataset = data.load(run.data, progress=progress)
    except StorageError as error:
        return None, f"skipped {recipe.showcase}, which shows an effect far beyond chance: {error}"
    labeled = _labeled(progress, recipe.showcase)
    return evaluate_showcase(run, dataset, seed=recipe.config.seed, cache=cache, progress=labeled), ""


def _certified(
    recipe: Recipe, run: Run, dataset: Dataset, cache: Path, progress: Progress
) -> tuple[CertifiedEvaluation, ...]:
    images, seed = run.normalize(dataset.test_images), run.config.seed
    keys = [cache_key(run.classifier(seed=seed, paper_rule=True), images, rule) for rule in recipe.certified]
    files = [cache / f"certified-{key}.safetensors" for key in keys]
    classifier = run.classifier(seed=seed, paper_rule=True)
    if not all(file.exists() for file in files):
        classifier = classifier.prepared(images, EXPECTED_PASSES * len(files))
    return tuple(
        evaluate_certified(
            replace(classifier, rule=rule),
            images,
            dataset.test_labels,
            cache=file,
            progress=_labeled(progress, f"certified, error {rule.error:g}"),
        )
        for rule, file in zip(recipe.certified, files, strict=True)
    )


def _labeled(progress: Progress, label: str) -> Progress:
    return lambda task, done, total, note="": progress(f"{task}, {label}", done, total, note)


def _stored_runs(recipe: Recipe, out: Path) -> tuple[list[Path], list[Path]]:
    """Return the runs in `out` that belong to this recipe, and those that belong to another."""
    folders = [out / "runs" / name for name in LABELS if run_folder.holds_run(out / "runs" / name)]
    stored = [folder for folder in folders if folder.name in recipe.trainings]
    return stored, [folder for folder in folders if folder not in stored]
