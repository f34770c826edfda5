"""apac reproduce"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from apac.cli.options import Overwrite, Resume, Seed
from apac.refusal import kindly
from apac.terminal import print_table, watched


@kindly
def reproduce(
    recipe: Annotated[str, typer.Argument(help="mnist-5k-cnn or mnist-5k-mlp.")] = "mnist-5k-cnn",
    out: Annotated[Path, typer.Option(help="The folder for the report.")] = Path("report"),
    seed: Seed = 0,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Train with and without deformation, evaluate, and write a report with table and figures.

    Example:  apac reproduce --out report

    Without a recipe: the paper's MNIST network on the 5,000 digits that come with the package.
    """
    from apac.paper import recipes, table
    from apac.paper.reproduce import reproduce as make

    chosen = recipes.find(recipe, seed=seed)
    try:
        with watched() as progress:
            result = make(chosen, out, resume=resume, overwrite=overwrite, progress=progress)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"stopped, and what is done is kept; go on with: "
            f"apac reproduce {recipe} --seed {seed} --resume --out {shlex.quote(str(out))}"
        ) from None
    print_table(table.error_against_m(result.deformed))
    print_table(table.certainties(result.certified, result.deformed))
    print_table(table.summary(result.deformed, result.original, chosen.paper))
    print(table.changes(result.deformed))
    print(f"wrote {out / 'report.html'} (training {result.training:.0f} s, deciding {result.deciding:.0f} s)")
