"""The command line interface. Commands import what they need when they run, so that `apac --help` is fast."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from apac.cli.bench import bench
from apac.cli.classify import classify
from apac.cli.data import fetch, path
from apac.cli.errors import handle_errors, run_app
from apac.cli.evaluate import evaluate
from apac.cli.export import export
from apac.cli.merge import merge
from apac.cli.options import import_modules
from apac.cli.preview import preview
from apac.cli.reproduce import reproduce
from apac.cli.serve import serve
from apac.cli.train import train
from apac.cli.tune import tune

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Augmented PAttern Classification: train on randomly deformed images, decide by averaging over deformations.

    Get started (a few minutes):  [bold]apac reproduce --out report[/bold]

    Put the options below before the command:  apac --threads 1 --import my_module train ...""",
)
for command in (train, tune, evaluate, classify, merge, preview, export, serve, reproduce, bench):
    app.command()(command)
data = typer.Typer(no_args_is_help=True, help="Download data sets and print their location.")
for command in (fetch, path):
    data.command()(command)
app.add_typer(data, name="data")


@app.callback(invoke_without_command=True)
@handle_errors
def options(
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="CPU threads to use.", show_default="all cores")
    ] = None,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="Import a module first, such as one that defines a deformation or a network. May be repeated.",
            show_default=False,
        ),
    ] = None,
    version: Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        print(f"apac {installed('augmented-pattern-classification')}")
        raise typer.Exit
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    import_modules(modules or [])


def main() -> None:
    # OpenMP threads spin while they wait for each other, which is slow if another process keeps the cores busy. A few
    # microseconds save most of the wake-ups. OpenMP reads the variable when torch is first imported. Importing the
    # library does not change the environment.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    run_app(app)
