"""Options that several commands share."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apac.errors import InputError

if TYPE_CHECKING:  # imports torch, which is slow
    from apac.classify.rules.certified import Certified

Seed = Annotated[int, typer.Option(help="Seed of the random generators.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run or report in the folder.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run or report in the folder.")]
RunFolder = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="A folder from apac train, or mnist-cnn or cifar10-cnn.", show_default=False),
]
Error = Annotated[float | None, typer.Option(help="Probability of a false certification.", show_default="0.0001")]
Limit = Annotated[int | None, typer.Option(help="Maximum number of passes per image.", show_default="16384")]


def certified(error: float | None, limit: int | None) -> Certified:
    """Return the certified rule with these options; None selects the default."""
    from apac.classify.rules.certified import Certified

    options: dict[str, Any] = {"error": error, "limit": limit}
    return Certified(**{name: value for name, value in options.items() if value is not None})


def numbers_of_passes(text: str) -> tuple[int, ...]:
    """Parse numbers of passes, separated by commas."""
    from apac.classify.rules.fixed import FixedPasses

    try:
        return tuple(FixedPasses(int(part)).passes for part in text.split(","))
    except InputError:
        raise
    except ValueError:
        raise InputError(f"--passes takes integers separated by commas, such as 1,4,16, got {text!r}.") from None


def import_modules(names: Sequence[str]) -> None:
    """Import modules by name, including modules in the current folder."""
    if names and "" not in sys.path:
        sys.path.insert(0, "")
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # a user's module may raise any exception
            reason = " ".join(str(error).split()) or "no message"
            raise InputError(f"--import {name} failed: {type(error).__name__}: {reason.rstrip('.')}.") from error
