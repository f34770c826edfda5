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
    from apac.deform.base import Deformation

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
    if names:
        search_current_folder()
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # a user's module may raise any exception
            reason = " ".join(str(error).split()) or "no message"
            raise InputError(f"--import {name} failed: {type(error).__name__}: {reason.rstrip('.')}.") from error


def search_current_folder() -> None:
    """Let imports find modules in the current folder, as `python -m` does."""
    if "" not in sys.path:
        sys.path.insert(0, "")


def deformation_of(text: str) -> Deformation:
    """Return the preset of that name, or the deformation that "module:attribute" names or returns."""
    from apac.deform import presets
    from apac.deform.base import Deformation
    from apac.models.import_path import failure, import_object, is_import_path

    names = {"mnist": presets.mnist, "cifar10": presets.cifar10}
    if text in names:
        return names[text]()
    if not is_import_path(text):
        raise InputError(f"there is no deformation {text!r}; choose one of {', '.join(names)}, or module:attribute.")
    search_current_folder()
    value = import_object(text, "deformation")
    if callable(value) and not isinstance(value, Deformation):
        try:
            value = value()
        except Exception as error:  # a user's function may raise any exception
            raise failure(text, error) from error
    if not isinstance(value, Deformation):
        raise InputError(f"{text} must be an apac.Deformation or a function that returns one, got {value!r}.")
    return value
