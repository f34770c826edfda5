"""apac evaluate"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apac.cli.errors import handle_errors, print_error
from apac.cli.options import Error, Limit, RunFolder, Seed, certified, numbers_of_passes
from apac.cli.terminal import print_table, show_progress
from apac.errors import InputError

if TYPE_CHECKING:  # imports torch, which is slow
    from apac.classify.rules.certified import Certified
    from apac.progress import Progress
    from apac.runs.run import Run


@handle_errors
def evaluate(
    run: RunFolder,
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
    seed: Seed = 0,
) -> None:
    """Evaluate on the test images, plain and by APAC: error by product and by sum, top-2 error, changed predictions.

    Example:  apac evaluate runs/cnn --passes 1,16,256

    Example:  apac evaluate runs/cnn --rule certified --against 1024

    Writes evaluation.json and evaluation.csv into RUN, or certified.json, certified.csv and passes.png. The scores of
    the passes are cached in RUN/scores, so that the same command continues after Ctrl-C. For a network that is shipped
    with the package, RUN is its name, and the results are written to a folder of that name.
    """
    from apac.classify.rules.fixed import FixedPasses
    from apac.runs.run import load

    if rule == "fixed":
        _refuse({"--error": error, "--limit": limit, "--against": against}, "--rule certified")
        _fixed(run, load(run), numbers_of_passes("1,4,16,64,256" if passes is None else passes), seed)
    elif rule == "certified":
        _refuse({"--passes": passes}, "--rule fixed")
        certified_rule = certified(error, limit)
        _certified(run, load(run), certified_rule, None if against is None else FixedPasses(against).passes, seed)
    else:
        raise InputError(f"--rule must be fixed or certified, got {rule!r}.")


def _fixed(folder: Path, run: Run, passes: tuple[int, ...], seed: int) -> None:
    from apac.evaluation.fixed import evaluate as measure
    from apac.reporting.tables import changes, error_against_m
    from apac.runs.folder import scores_path
    from apac.runs.run import images_to_test
    from apac.runs.storage import write_json, write_text

    if _mention_no_deformation(run):
        passes = ()
    with show_progress() as progress, _resumable(scores_path(folder)):
        images, labels = images_to_test(run, progress=progress)
        result = measure(
            run.classifier(seed=seed), images, labels, passes, cache=scores_path(folder), progress=progress
        )
    print_table(error_against_m(result))
    if passes:
        print(changes(result))
    write_json(folder / "evaluation.json", result.to_json())
    write_text(folder / "evaluation.csv", result.to_csv())
    print(f"wrote {folder / 'evaluation.json'} and {folder / 'evaluation.csv'}")


def _certified(folder: Path, run: Run, rule: Certified, against: int | None, seed: int) -> None:
    from apac.evaluation.certified import compare, evaluate_certified, to_csv
    from apac.evaluation.score_cache import ScoreCache
    from apac.reporting import tables
    from apac.runs.folder import scores_path
    from apac.runs.run import images_to_test
    from apac.runs.storage import write_bytes, write_json, write_text

    _mention_no_deformation(run)
    classifier = run.classifier(rule, seed=seed)
    with show_progress() as progress:
        images, labels = images_to_test(run, progress=progress)
        plain = int((classifier.plain(images).argmax(dim=1) != labels).sum()) / len(labels)
        result = evaluate_certified(classifier, images, labels, progress=progress)
        payload = result.to_json() | {"plain": plain}
        write_json(folder / "certified.json", payload)
        write_text(folder / "certified.csv", to_csv(result.decision, labels))
        written = [folder / "certified.json", folder / "certified.csv"]
        try:
            from apac.reporting.figures.curves import passes_against_margin
        except InputError as missing:
            print_error(f"passes.png is not drawn: {missing}")
        else:
            written.append(folder / "passes.png")
            write_bytes(written[-1], passes_against_margin(result.decision, labels))
    print_table(tables.certified(result, plain))
    print(f"wrote {', '.join(map(str, written))}")
    if against is None:
        return
    with show_progress() as progress, _resumable(scores_path(folder)):
        cache = ScoreCache(classifier, images, against, scores_path(folder))
        scores = cache.get(against, progress=_named(progress, f"deciding with {against:,} passes"))
    agreement = compare(result.decision, scores, labels, cache.seconds)
    write_json(folder / "certified.json", payload | {"against": agreement.to_json()})
    print(tables.agreement(agreement, result))


def _mention_no_deformation(run: Run) -> bool:
    from apac.deform.compose import Compose

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
