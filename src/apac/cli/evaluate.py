"""apac evaluate"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from apac.cli.errors import handle_errors
from apac.cli.evaluate_certified import certified_evaluation
from apac.cli.evaluate_images import (
    EvaluationFiles,
    described,
    held_out_images,
    mention_cost,
    mention_data_and_choice,
    require_same_evaluation,
    resumable,
)
from apac.cli.options import (
    Error,
    Limit,
    PaperRule,
    RunFolder,
    Seed,
    certified,
    load_run,
    numbers_of_passes,
)
from apac.cli.ranks import on_first_rank, process_group
from apac.cli.terminal import show_progress
from apac.errors import InputError

if TYPE_CHECKING:  # imports torch, which is slow
    from apac.distributed.ranks.group import Group
    from apac.runs.run import Run


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
    files = EvaluationFiles(run, data, cast(Any, on_unreadable), out, overwrite, paper_rule)

    def load() -> Run:
        return load_run(run, paper_rule=paper_rule)

    if rule == "fixed":
        _refuse({"--error": error, "--limit": limit, "--against": against}, "--rule certified")
        numbers = numbers_of_passes("1,4,16,64,256" if passes is None else passes)
        with process_group() as group:
            _fixed(files, group.together(load), numbers, seed, group)
    elif rule == "certified":
        _refuse({"--passes": passes}, "--rule fixed")
        certified_rule = certified(error, limit)
        with process_group() as group:
            certified_evaluation(files, group.together(load), certified_rule, against, seed, group)
    else:
        raise InputError(f"--rule must be fixed or certified, got {rule!r}.")


def _fixed(files: EvaluationFiles, run: Run, passes: tuple[int, ...], seed: int, group: Group) -> None:
    from apac.cli.evaluate_output import print_fixed, write_fixed
    from apac.evaluation.by_class import Predictions
    from apac.evaluation.fixed import evaluate as measure
    from apac.evaluation.reliability import measure_each, store, temperatures

    if (reason := _no_deformation(run)) is not None:
        passes = ()
        if group.first:
            print(reason)
    scores = files.scores
    with show_progress() as shown, resumable(scores):
        progress = on_first_rank(shown)
        tested, folder = group.together(lambda: files.load(run, "evaluation.json", progress))
        held_out = held_out_images(run, tested, progress)
        classifier = run.classifier(seed=seed)
        require_same_evaluation(group, classifier, tested, held_out, passes=passes)
        if group.first and passes:
            mention_cost(tested, held_out, f"{max(passes):,} passes each")
        result = measure(
            classifier, tested.images, tested.labels, passes, held_out=held_out, cache=scores, progress=progress
        )
    if not group.first:
        return
    predictions = Predictions(run.classes, tested.labels, result.plain_labels, result.labels, tested.files)
    mention_data_and_choice(run, tested)
    print_fixed(result, predictions)
    payload = result.to_json() | described(run, tested) | predictions.to_json()
    if tested.own:
        measured = measure_each(result.scored, tested.labels, classifier.deformation, temperatures(run.choice))
        store(files.out or files.run, measured)
    if not files.keep(folder / "evaluation.json", payload):
        write_fixed(folder, payload, result, predictions)


def _no_deformation(run: Run) -> str | None:
    """Return why there is only the plain prediction to evaluate, or None."""
    from apac.deform.compose import Compose

    if run.choice is not None and not run.choice.strength:
        return "The plain prediction was tuned to be the better choice for this network; --paper-rule evaluates APAC."
    if run.deformation != Compose():
        return None
    return "This network was trained without deformation, so APAC equals the plain prediction."


def _refuse(options: Mapping[str, object], rule: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name} requires {rule}; omit it, or add {rule}.")
