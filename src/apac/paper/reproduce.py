"""One recipe from data to report: train twice, evaluate, draw, write. Stopped anywhere, it goes on from there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from apac import data, run_folder
from apac.certainty import Certainty, certify
from apac.data.base import Dataset
from apac.errors import InputError
from apac.evaluate import Evaluation, evaluate
from apac.paper.recipes import ORIGINAL, Recipe
from apac.progress import Progress, silent
from apac.run import Run, train
from apac.summing import key_of

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
    certified: tuple[Certainty, ...]
    training: float  # seconds, of both runs
    deciding: float  # seconds, of all passes whenever they were made


def reproduce(
    recipe: Recipe,
    out: Path,
    *,
    hours: float | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress = silent,
) -> Result:
    """Train and evaluate, with runs and scores kept in `out`.

    With `hours`, as many epochs as both trainings can make in that time; a training that is resumed keeps its number.
    """
    dataset = data.load(recipe.deformed.data, progress=progress)
    folders = [out / "runs" / name for name in recipe.trainings]
    _claim(out, folders, resume=resume, overwrite=overwrite)
    if resume and run_folder.holds_run(folders[0]):
        recipe = replace(recipe, deformed=replace(recipe.deformed, epochs=run_folder.read_config(folders[0]).epochs))
    elif hours is not None:
        recipe = recipe.within(hours, dataset.train_images)
    runs, evaluations, deciding = [], [], 0.0
    for folder, (name, config) in zip(folders, recipe.trainings.items(), strict=True):
        runs.append(train(config, folder, resume=resume, progress=_named(progress, f"{name} data")))
    for folder, run in zip(folders, runs, strict=True):
        passes = () if run.config.deformation == ORIGINAL else recipe.passes
        images = run.normalise(dataset.test_images)
        classifier = run.classifier(seed=run.config.seed)
        keep = run_folder.scores_of(folder)
        evaluation = evaluate(classifier, images, dataset.test_labels, passes, keep=keep, progress=progress)
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


def _certify(recipe: Recipe, run: Run, dataset: Dataset, keep: Path, progress: Progress) -> tuple[Certainty, ...]:
    images, found = run.normalise(dataset.test_images), []
    ready = run.classifier(seed=run.config.seed).prepared(images, EXPECTED * len(recipe.certified))
    for rule in recipe.certified:
        key = key_of(run.classifier(rule, seed=run.config.seed), images, rule)
        found.append(
            certify(
                replace(ready, rule=rule),
                images,
                dataset.test_labels,
                keep=keep / f"certified-{key}.safetensors",
                progress=_named(progress, f"certified, error {rule.error:g}"),
            )
        )
    return tuple(found)


def _named(progress: Progress, name: str) -> Progress:
    return lambda task, done, total, note="": progress(f"{task}, {name}", done, total, note)


def _claim(out: Path, runs: list[Path], *, resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise InputError("choose --resume to go on with a report or --overwrite to replace it, not both.")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; a report needs a folder.")
    if resume or not any(map(run_folder.holds_run, runs)):
        return
    if not overwrite:
        raise InputError(
            f"{out} already holds a report or a part of one; go on with it by --resume, replace it by --overwrite, "
            f"or choose another folder."
        )
    for folder in runs:
        run_folder.discard(folder)
