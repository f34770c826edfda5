"""apac evaluate"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from apac.cli.errors import handle_errors, print_error
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
from apac.cli.terminal import print_table, show_progress
from apac.errors import InputError

if TYPE_CHECKING:  # imports torch, which is slow
    from torch import Tensor

    from apac.classify.decision import Decision
    from apac.classify.rules.certified import Certified
    from apac.evaluation.by_class import Predictions
    from apac.progress import Progress
    from apac.runs.labeled_images import LabeledImages
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
        str, typer.Option(help="fixed: error as a function of M. certified: passes until the decision is certified.")
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
    """Evaluate on test images, plain and by APAC: error by product and by sum, top-2 error, errors by class.

    Example:  apac evaluate runs/cnn --passes 1,16,256

    Example:  apac evaluate runs/photos --data new-photos

    Example:  apac evaluate runs/cnn --rule certified --against 1024

    Writes evaluation.json, evaluation.csv, classes.csv (errors by class), confusion.csv, confusion.png and
    misclassified.csv (with file names) into RUN, or certified.json, certified.csv and passes.png. A larger evaluation
    in their place is kept. The scores of the passes are cached in RUN/scores, so that the same command continues after
    Ctrl-C. For a network that is shipped with the package, RUN is its name, and the results are written to a folder of
    that name.

    The classes of --data are matched by name, and some may be missing. If the folder has the subfolders train and test,
    its test part is evaluated, otherwise all of its images.
    """
    if on_unreadable not in (None, "refuse", "skip"):
        raise InputError(f"--on-unreadable must be refuse or skip, got {on_unreadable!r}.")
    if against is not None and against < 1:
        raise InputError(f"--against must be an integer of at least 1, got {against}.")
    files = _Files(run, data, cast(Any, on_unreadable), out, overwrite)
    if rule == "fixed":
        _refuse({"--error": error, "--limit": limit, "--against": against}, "--rule certified")
        numbers = numbers_of_passes("1,4,16,64,256" if passes is None else passes)
        _fixed(files, load_run(run, paper_rule=paper_rule), numbers, seed)
    elif rule == "certified":
        _refuse({"--passes": passes}, "--rule fixed")
        certified_rule = certified(error, limit)
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

    def load(self, run: Run, name: str, progress: Progress) -> tuple[LabeledImages, Path]:
        """Return the images, and the folder for the results, in which the file `name` describes them."""
        from apac.evaluation.stored import check_data
        from apac.runs.folder import EVALUATIONS
        from apac.runs.labeled_images import images_to_test

        tested = images_to_test(run, self.data, on_unreadable=self.on_unreadable, progress=progress)
        folder = self.out or (self.run if tested.own else self.run / EVALUATIONS / Path(tested.data).name)
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


def _fixed(files: _Files, run: Run, passes: tuple[int, ...], seed: int) -> None:
    from apac.evaluation.by_class import Predictions
    from apac.evaluation.fixed import evaluate as measure
    from apac.reporting import tables
    from apac.runs.folder import scores_path

    if _mention_no_deformation(run):
        passes = ()
    scores = scores_path(files.run)
    with show_progress() as progress, _resumable(scores):
        tested, folder = files.load(run, "evaluation.json", progress)
        classifier = run.classifier(seed=seed)
        result = measure(classifier, tested.images, tested.labels, passes, cache=scores, progress=progress)
    predictions = Predictions(run.classes, tested.labels, result.plain_labels, result.labels, tested.files)
    _mention_data_and_choice(run, tested)
    print_table(tables.error_against_m(result))
    print_table(tables.by_class(predictions))
    if passes:
        print(tables.changes(result))
    payload = result.to_json() | _described(run, tested) | predictions.to_json()
    if files.keep(folder / "evaluation.json", payload):
        return
    _write(
        folder,
        {
            "evaluation.json": json.dumps(payload, indent=2) + "\n",
            "evaluation.csv": result.to_csv(),
            "classes.csv": predictions.classes_csv(),
            "confusion.csv": predictions.confusion_csv(),
            "misclassified.csv": predictions.misclassified_csv(),
        },
        "confusion.png",
        lambda: _draw_confusion(predictions, passes),
    )


def _certified(files: _Files, run: Run, rule: Certified, against: int | None, seed: int) -> None:
    from apac.classify.scores import rank
    from apac.evaluation.by_class import Predictions
    from apac.evaluation.certified import compare, evaluate_certified, to_csv
    from apac.evaluation.score_cache import ScoreCache
    from apac.reporting import tables
    from apac.runs.folder import scores_path
    from apac.runs.storage import write_json

    _mention_no_deformation(run)
    classifier = run.classifier(rule, seed=seed)
    with show_progress() as progress:
        tested, folder = files.load(run, "certified.json", progress)
        images, labels = tested.images, tested.labels
        plain_labels = rank(classifier.plain(images))[:, 0]
        result = evaluate_certified(classifier, images, labels, progress=progress)
    plain = int((plain_labels != labels).sum()) / len(labels)
    predictions = Predictions(run.classes, labels, plain_labels, result.decision.labels, tested.files)
    _mention_data_and_choice(run, tested)
    print_table(tables.certified(result, plain))
    print_table(tables.by_class(predictions))
    payload = result.to_json() | {"plain": plain} | _described(run, tested) | predictions.to_json()
    path = folder / "certified.json"
    kept = files.keep(path, payload | ({} if against is None else {"against": {"passes": against}}))
    if not kept:
        contents = {
            path.name: json.dumps(payload, indent=2) + "\n",
            "certified.csv": to_csv(result.decision, labels, tested.files),
        }
        _write(folder, contents, "passes.png", lambda: _draw_passes(result.decision, labels))
    if against is None:
        return
    with show_progress() as progress, _resumable(scores_path(files.run)):
        cache = ScoreCache(classifier, images, against, scores_path(files.run))
        scores = cache.get(against, progress=_named(progress, f"deciding with {against:,} passes"))
    agreement = compare(result.decision, scores, labels, cache.seconds)
    if not kept:
        write_json(path, payload | {"against": agreement.to_json()})
    print(tables.agreement(agreement, result))


def _draw_confusion(predictions: Predictions, passes: tuple[int, ...]) -> bytes:
    from apac.reporting.figures.confusion import confusion_matrix
    from apac.reporting.tables import percent

    wrong = int((predictions.apac != predictions.truth).sum())
    decided = f"APAC, {max(passes):,} passes" if passes else "plain"
    title = f"{decided}: {percent(wrong / len(predictions.truth))} error on {len(predictions.truth):,} images"
    return confusion_matrix(predictions.confusion("apac"), predictions.classes, title)


def _draw_passes(decision: Decision, labels: Tensor) -> bytes:
    from apac.reporting.figures.curves import passes_against_margin

    return passes_against_margin(decision, labels)


def _write(folder: Path, contents: Mapping[str, str], figure: str, draw: Callable[[], bytes]) -> None:
    """Write text files and, if the package that draws it is installed, a figure."""
    from apac.runs.storage import write_bytes

    written = [folder / name for name in contents]
    for name, text in contents.items():
        write_bytes(folder / name, text.encode(errors="surrogateescape"))  # a file name may not be UTF-8
    try:
        picture = draw()
    except InputError as missing:
        print_error(f"{figure} is not drawn: {missing}")
    else:
        written.append(folder / figure)
        write_bytes(written[-1], picture)
    print(f"wrote {', '.join(map(str, written))}")


def _described(run: Run, tested: LabeledImages) -> dict[str, Any]:
    strength = 1.0 if run.choice is None else run.choice.strength
    return {"data": tested.data, "own": tested.own, "strength": strength}


def _mention_data_and_choice(run: Run, tested: LabeledImages) -> None:
    if tested.own and tested.data != run.data:
        print(f"{tested.data} holds the images of the training; the files that it held out are evaluated.")
    mention_choice(run)


def _mention_no_deformation(run: Run) -> bool:
    from apac.deform.compose import Compose

    if run.choice is not None and not run.choice.strength:
        print("The plain prediction was tuned to be the better choice for this network; --paper-rule evaluates APAC.")
        return True
    if run.deformation != Compose():
        return False
    print("This network was trained without deformation, so APAC equals the plain prediction.")
    return True


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
