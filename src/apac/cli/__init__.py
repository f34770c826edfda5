"""The command: parse, call, print. What takes long to import is imported by the command that needs it."""

from __future__ import annotations

from typing import Annotated

import typer

from apac.cli.bench import bench
from apac.cli.classify import classify
from apac.cli.data import fetch, path
from apac.cli.errors import run_app
from apac.cli.evaluate import evaluate
from apac.cli.reproduce import reproduce
from apac.cli.train import train

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Augmented PAttern Classification: train on randomly deformed images, decide by the same expectation.

    A first look, a few minutes:  [bold]apac reproduce --out report[/bold]""",
)
for command in (train, evaluate, classify, reproduce, bench):
    app.command()(command)
data = typer.Typer(no_args_is_help=True, help="The data sets: where they are kept, and how to get them.")
for command in (fetch, path):
    data.command()(command)
app.add_typer(data, name="data")


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        print(f"apac {installed('augmented-pattern-classification')}")
        raise typer.Exit


def main() -> None:
    run_app(app)
