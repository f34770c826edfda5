"""apac reproduce"""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Annotated

import typer

from apac.cli.errors import handle_errors
from apac.cli.options import Overwrite, Resume, Seed, numbers_of_passes
from apac.cli.terminal import print_table, show_progress
from apac.errors import InputError
from apac.progress import Progress


@handle_errors
def reproduce(
    recipe: Annotated[
        str,
        typer.Argument(
            help="mnist-cnn, mnist-mlp, cifar10-cnn, cifar10-mlp, or all; mnist-5k-cnn, mnist-5k-mlp; "
            "mnist-cnn-distinctive; mnist-mlp-free."
        ),
    ] = "mnist-5k-cnn",
    out: Annotated[Path, typer.Option(help="The folder for the report.")] = Path("report"),
    hours: Annotated[
        float | None,
        typer.Option(help="For the two trainings of a recipe; deciding comes on top.", show_default="its own epochs"),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Of the training with deformation; the other keeps its share.", show_default="the recipe's"
        ),
    ] = None,
    schedule: Annotated[str, typer.Option(help="short, or paper: 15,000 epochs with the paper's rates.")] = "short",
    passes: Annotated[str | None, typer.Option(help="The M to evaluate.", show_default="the recipe's")] = None,
    seed: Seed = 0,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Train with deformation and beside it without, evaluate, and write a report with table and figures.

    Example:  apac reproduce --out report

    Without a recipe: the paper's MNIST network on the 5,000 digits that come with the package. all: the rows of the
    paper's table, in a folder each. mnist-cnn-distinctive: class-distinctive deformation beside class-indistinctive.
    mnist-mlp-free: the MLP with weights that are free from the start, not tied at first.
    """
    from dataclasses import replace
    from functools import partial

    from apac.paper import recipes, report, table2
    from apac.paper import reproduce as making

    names = recipes.TABLE if recipe == "all" else (recipe,)
    chosen = [recipes.find(name, seed=seed, schedule=schedule) for name in names]
    if [hours is not None, epochs is not None, schedule == "paper"].count(True) > 1:
        raise InputError("each of --hours, --epochs and --schedule paper decides the number of epochs; choose one.")
    if hours is not None and not 0 < hours < math.inf:
        raise InputError(f"--hours takes a number above 0, got {hours:g}.")
    if passes is not None:
        chosen = [replace(each, passes=numbers_of_passes(passes)) for each in chosen]
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; a report needs a folder.")
    if recipe == "all":
        table2.check_free(out, resume=resume, overwrite=overwrite)
    folders = [out / each.name if recipe == "all" else out for each in chosen]
    results = []
    go_on, done = ("--overwrite", "nothing was replaced") if overwrite else ("--resume", "what is done is kept")
    try:
        with show_progress() as progress:
            how = partial(
                making.plan, epochs=epochs, hours=hours, resume=resume, overwrite=overwrite, progress=progress
            )
            chosen = [how(each, folder) for each, folder in zip(chosen, folders, strict=True)]
        for each, folder in zip(chosen, folders, strict=True):
            print(making.outline(each))
            if overwrite:
                done = "some of what was to be replaced is removed"
                making.clear(each, folder)
        go_on, done = "--resume", "what is done is kept"
        for each, folder in zip(chosen, folders, strict=True):
            with show_progress() as progress:
                of_all = partial(_named, each.name, progress) if recipe == "all" else progress
                result = making.reproduce(each, folder, resume=resume, progress=of_all)
                report.write(result, folder)
            results.append(result)
            for shown in report.result_tables(result):
                print_table(shown)
            print(*report.sentences(result), sep="\n")
            seconds = f"training {result.training:,.0f} s, deciding {result.deciding:,.0f} s"
            print(f"wrote {folder / 'report.html'} ({seconds})")
    except KeyboardInterrupt:
        more = "" if passes is None else f"--passes {passes} "
        more += "--schedule paper " if schedule == "paper" else ""
        more += "" if hours is None else f"--hours {hours:g} "
        more += "" if epochs is None else f"--epochs {epochs} "
        raise KeyboardInterrupt(
            f"stopped, and {done}; go on with: "
            f"apac reproduce {recipe} --seed {seed} {more}{go_on} --out {shlex.quote(str(out))}"
        ) from None
    if recipe == "all":
        table2.write(results, out)
        print_table(table2.errors(results))
        print(f"wrote {out / 'report.html'}")


def _named(name: str, progress: Progress, task: str, done: int, total: int, note: str = "") -> None:
    progress(f"{name}: {task}", done, total, note)
