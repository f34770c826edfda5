"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apac.errors import InputError

if TYPE_CHECKING:  # it would bring torch, which takes long
    from apac.classify.rules.certified import Certified

Seed = Annotated[int, typer.Option(help="Decides every random number.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what the folder holds.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what the folder holds.")]
RunFolder = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="A folder that apac train made, or mnist-cnn or cifar10-cnn.", show_default=False
    ),
]
Error = Annotated[float | None, typer.Option(help="Probability of certifying falsely.", show_default="0.0001")]
Limit = Annotated[int | None, typer.Option(help="Passes after which an uncertain image stops.", show_default="16384")]


def certified(error: float | None, limit: int | None) -> Certified:
    """The certified rule with what was given, and its own values otherwise."""
    from apac.classify.rules.certified import Certified

    given: dict[str, Any] = {"error": error, "limit": limit}
    return Certified(**{name: value for name, value in given.items() if value is not None})


def numbers_of_passes(text: str) -> tuple[int, ...]:
    """Numbers of passes, separated by commas."""
    from apac.classify.rules.fixed import FixedPasses

    try:
        return tuple(FixedPasses(int(part)).passes for part in text.split(","))
    except InputError:
        raise
    except ValueError:
        raise InputError(f"--passes takes whole numbers separated by commas, such as 1,4,16, got {text!r}.") from None
