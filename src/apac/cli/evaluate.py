"""apac evaluate"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from apac.cli.errors import handle_errors
from apac.cli.options import (
    Error,
    Limit,
    PaperRule,
    RunFolder,
    Seed,
    certified,
    load_run,
    mention_choice,
    numbers_of_passes,
)
from apac.cli.ranks import on_first_rank, process_group, started_by_torchrun
from apac.cli.terminal import show_progress
from apac.errors import InputError

if TYPE_CHECKING:  # imports torch, which is slow
    from torch import Tensor

    from apac.classify.rules.certified import Certified
    from apac.distributed.ranks.group import Group
    from apac.progress import Progress
    from apac.runs.labeled_images import LabeledImages
    from apac.runs.run import Run

# Of the held-out images on which temperatures are fitted: fewer leave them to chance, more do not improve them.
MIN_HELD_OUT, MAX_HELD_OUT = 50, 2000


@handle_errors
def evaluate(
    run: RunFolder,
    data: Annotated[
        str | None,
        typer.Option(
            help="Other test images: a folder with a subfolder for each class, or mnist-5k, mnist or cifar10.",
            show_default="the run's own",
        ),
    ] = None,
    passes: Annotated[
        str | None,
        typer.Option(help="Numbers of passes M, separated by commas.", show_default="1,4,16,64,256"),
    ] = None,
    rule: Annotated[
        str, typer.Option(help="fixed: error as a function of M. certified: passes until the decision is settled.")
    ] = "fixed",
    error: Error = None,
    limit: Limit = None,
    against: Annotated[
        int | None,
        typer.Option(help="Compare certified decisions with those after this number of passes.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the results.", show_default="RUN, or RUN/evaluations/DATA with --data"),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a larger evaluation, or one of other data.")
    ] = False,
    on_unreadable: Annotated[
        str | None,
        typer.Option(help="Unreadable image files: refuse or skip.", show_default="as in training"),
    ] = None,
    paper_rule: PaperRule = False,
    seed: Seed = 0,
) -> None:
    """Evaluate on test images, plain and by APAC: errors, likelihood, calibration, risk, and what may be chance.

    Example:  apac evaluate runs/cnn --passes 1,16,256

    Example:  apac evaluate runs/photos --data new-photos

    Example:  apac evaluate runs/cnn --rule certified --against 1024

    Writes evaluation.json, evaluation.csv, classes.csv (errors by class), confusion.csv, misclassified.csv (with file
    names), confusion.png, reliability.png and risk.png into RUN, or certified.json, certified.csv and passes.png. A
    larger evaluation in their place is kept. Both write reliability.json, from which apac classify quotes how often
    answers of a probability were right.

    Temperatures are fitted on training images that the run held out, or by cross-fitting. The scores of the passes are
    cached in RUN/scores, so that the same command continues after Ctrl-C. For a network that is shipped with the
    package, RUN is its name, and the results are written to a folder of that name.

    The classes of --data are matched by name, and some may be missing. If the folder has the subfolders train and test,
    its test part is evaluated, otherwise all of its images.
    """
    if on_unreadable not in (None, "refuse", "skip"):
        raise InputError(f"--on-unreadable must be refuse or skip, got {on_unreadable!r}.")
    if against is not None and against < 1:
        raise InputError(f"--against must be an integer of at least 1, got {against}.")
    files = _Files(run, data, cast(Any, on_unreadable), out, overwrite, paper_rule)
    if rule == "fixed":
        _refuse({"--error": error, "--limit": limit, "--against": against}, "--rule certified")
        numbers = numbers_of_passes("1,4,16,64,256" if passes is None else passes)
        with process_group() as group:
            _fixed(files, load_run(run, paper_rule=paper_rule), numbers, seed, group)
    elif rule == "certified":
        _refuse({"--passes": passes}, "--rule fixed")
        certified_rule = certified(error, limit)
        if started_by_torchrun():
            raise InputError("--rule certified is evaluated by one process; start it without torchrun.")
        _certified(files, load_run(run, paper_rule=paper_rule), certified_rule, against, seed)
    else:
        raise InputError(f"--rule must be fixed or certified, got {rule!r}.")


@dataclass(frozen=True)
class _Files:
    """Which images are evaluated, and where the results are written."""

    run: Path
    data: str | None
    on_unreadable: Literal["refuse", "skip"] | None
    out: Path | None
    overwrite: bool
    paper_rule: bool

    def load(self, run: Run, name: str, progress: Progress) -> tuple[LabeledImages, Path]:
        """Return the images, and the folder for the results, in which the file `name` describes them."""
        from apac.evaluation.stored import check_data
        from apac.runs.folder import EVALUATIONS
        from apac.runs.labeled_images import images_to_test

        tested = images_to_test(run, self.data, on_unreadable=self.on_unreadable, progress=progress)
        # RUN itself has the evaluation of what was tuned, on the data of the run.
        name_of_folder = Path(tested.data).name + ("-paper-rule" if self.paper_rule else "")
        in_run = tested.own and not self.paper_rule
        folder = self.out or (self.run if in_run else self.run / EVALUATIONS / name_of_folder)
        if not self.overwrite:
            check_data(folder / name, tested)
        return tested, folder

    def keep(self, path: Path, payload: Mapping[str, Any]) -> bool:
        """Return whether a larger evaluation is kept in the place of this one, and print that it is."""
        from apac.evaluation.stored import describe_larger

        larger = None if self.overwrite else describe_larger(path, payload)
        if larger is not None:
            print(f"kept {path}, which is larger: {larger}; --overwrite replaces it, --out writes elsewhere.")
        return larger is not None


def _fixed(files: _Files, run: Run, passes: tuple[int, ...], seed: int, group: Group) -> None:
    from apac.cli.evaluate_output import print_fixed, write_fixed
    from apac.evaluation.by_class import Predictions
    from apac.evaluation.fixed import evaluate as measure
    from apac.evaluation.reliability import measure_each, store, temperatures
    from apac.runs.folder import scores_path

    if (reason := _no_deformation(run)) is not None:
        passes = ()
        if group.first:
            print(reason)
    scores = scores_path(files.run)
    with show_progress() as shown, _resumable(scores):
        progress = on_first_rank(shown)
        tested, folder = files.load(run, "evaluation.json", progress)
        held_out = _held_out(run, tested, progress)
        classifier = run.classifier(seed=seed)
        result = measure(
            classifier, tested.images, tested.labels, passes, held_out=held_out, cache=scores, progress=progress
        )
    if not group.first:
        return
    predictions = Predictions(run.classes, tested.labels, result.plain_labels, result.labels, tested.files)
    _mention_data_and_choice(run, tested)
    print_fixed(result, predictions)
    payload = result.to_json() | _described(run, tested) | predictions.to_json()
    if tested.own:
        measured = measure_each(result.scored, tested.labels, classifier.deformation, temperatures(run.choice))
        store(files.out or files.run, measured)
    if not files.keep(folder / "evaluation.json", payload):
        write_fixed(folder, payload, result, predictions)


def _certified(files: _Files, run: Run, rule: Certified, against: int | None, seed: int) -> None:
    from apac.classify.scores import rank
    from apac.cli.evaluate_output import print_certified, write_certified
    from apac.deform.compose import Compose
    from apac.evaluation.by_class import Predictions
    from apac.evaluation.certified import compare, evaluate_certified, to_csv
    from apac.evaluation.certified_measures import measure_certified
    from apac.evaluation.reliability import store
    from apac.evaluation.score_cache import ScoreCache
    from apac.reporting import tables
    from apac.runs.folder import scores_path
    from apac.runs.storage import write_json

    if run.deformation == Compose() or (run.choice is not None and not run.choice.strength):
        raise InputError("this run decides by one pass of the undeformed image; omit --rule certified.")
    classifier = run.classifier(rule, seed=seed)
    with show_progress() as progress:
        tested, folder = files.load(run, "certified.json", progress)
        held_out = _held_out(run, tested, progress)
        images, labels = tested.images, tested.labels
        plain = classifier.plain(images)
        result = evaluate_certified(classifier, images, labels, progress=progress)
        measured = measure_certified(classifier, result.decision, plain, labels, held_out=held_out, progress=progress)
    plain_labels = rank(plain)[:, 0]
    plain_error = int((plain_labels != labels).sum()) / len(labels)
    predictions = Predictions(run.classes, labels, plain_labels, result.decision.labels, tested.files)
    _mention_data_and_choice(run, tested)
    print_certified(result, measured, plain_error, predictions)
    payload = result.to_json() | measured.to_json() | {"plain": plain_error}
    payload |= _described(run, tested) | predictions.to_json()
    path = folder / "certified.json"
    kept = files.keep(path, payload | ({} if against is None else {"against": {"passes": against}}))
    if not kept:
        contents = {
            path.name: json.dumps(payload, indent=2) + "\n",
            "certified.csv": to_csv(result.decision, labels, tested.files),
        }
        write_certified(folder, contents, result, labels)
    if tested.own:
        store(files.out or files.run, measured.reliability)
    if against is None:
        return
    with show_progress() as progress, _resumable(scores_path(files.run)):
        cache = ScoreCache(classifier, images, against, scores_path(files.run))
        scores = cache.get(against, progress=_named(progress, f"deciding with {against:,} passes"))
    agreement = compare(result.decision, scores, labels, cache.seconds)
    if not kept:
        write_json(path, payload | {"against": agreement.to_json()})
    print(tables.agreement(agreement, result))


def _held_out(run: Run, tested: LabeledImages, progress: Progress) -> tuple[Tensor, Tensor] | None:
    """Return training images that the run held out, for the temperatures; None if there are too few."""
    from apac.runs.labeled_images import images_held_out

    try:
        moved = tested.data if tested.own and tested.data != run.data else None
        apart = images_held_out(run, data=moved, progress=progress)
    except InputError:  # none were held out, or the training data are not available
        return None
    if len(apart.images) < MIN_HELD_OUT:
        return None
    return apart.images[:MAX_HELD_OUT], apart.labels[:MAX_HELD_OUT]


def _described(run: Run, tested: LabeledImages) -> dict[str, Any]:
    tuned = {"strength": 1.0, "combine": "product"}
    if run.choice is not None:
        tuned = {"strength": run.choice.strength, "combine": run.choice.combine}
    return {"data": tested.data, "own": tested.own, **tuned}


def _mention_data_and_choice(run: Run, tested: LabeledImages) -> None:
    if tested.own and tested.data != run.data:
        print(f"{tested.data} holds the images of the training; the files that it held out are evaluated.")
    mention_choice(run)


def _no_deformation(run: Run) -> str | None:
    """Return why there is only the plain prediction to evaluate, or None."""
    from apac.deform.compose import Compose

    if run.choice is not None and not run.choice.strength:
        return "The plain prediction was tuned to be the better choice for this network; --paper-rule evaluates APAC."
    if run.deformation != Compose():
        return None
    return "This network was trained without deformation, so APAC equals the plain prediction."


@contextmanager
def _resumable(scores: Path) -> Iterator[None]:
    """Print how to continue after Ctrl-C, if scores are cached in the folder."""
    try:
        yield
    except KeyboardInterrupt:
        if not any(scores.glob("*.safetensors")):
            raise
        sentence = "interrupted; completed passes are cached. Run the same command to continue."
        raise KeyboardInterrupt(sentence) from None


def _named(progress: Progress, name: str) -> Progress:
    return lambda task, done, total, note="": progress(name, done, total, note)


def _refuse(options: Mapping[str, object], rule: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name} requires {rule}; omit it, or add {rule}.")
