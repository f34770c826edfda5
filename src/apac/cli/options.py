"""Options that several commands share."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apac import limits
from apac.errors import InputError
from apac.validation import open_regular, parse_json

if TYPE_CHECKING:  # imports torch, which is slow
    from apac.classify.classifier import Classifier
    from apac.classify.rules.certified import Certified
    from apac.deform.base import Deformation
    from apac.runs.run import Run

Seed = Annotated[int, typer.Option(help="Seed of the random generators.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run or report in the folder.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run or report in the folder.")]
RunFolder = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="A folder from apac train, or mnist-cnn, cifar10-cnn or cifar10-modern.", show_default=False
    ),
]
DeformationOption = Annotated[
    str | None,
    typer.Option(
        "--deformation",
        metavar="NAME|FILE.json|module:attribute",
        help="mnist, cifar10 or photos; a file with the JSON of Deformation.to_json; or an apac.Deformation, or a "
        "function that returns one.",
        show_default="the paper's; photos for a folder",
    ),
]
Size = Annotated[
    int | None,
    typer.Option(help="Height and width of the images of a folder, in pixels.", show_default="chosen from the files"),
]
Fit = Annotated[
    str | None,
    typer.Option(
        help="crop the pictures of a folder to a square, or pad them by repeating their edge.", show_default="crop"
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        help="Type of the matrix products and convolutions in training: float32, or bfloat16, which is faster for "
        "large networks on a processor with instructions for it. Decisions are always in float32.",
        show_default="float32",
    ),
]
PaperRule = Annotated[
    bool, typer.Option("--paper-rule", help="Ignore what apac tune chose: strength 1, product, no temperature.")
]
Error = Annotated[
    float | None,
    typer.Option(help="Probability of settling on an answer that more passes would change.", show_default="0.0001"),
]
Limit = Annotated[int | None, typer.Option(help="Maximum number of passes per image.", show_default="16384")]


def load_run(folder: Path, *, paper_rule: bool) -> Run:
    """Load a run, without what `apac tune` chose if the paper's rule is asked for."""
    from apac.runs.run import load

    return load(folder, paper_rule=paper_rule)


def mention_choice(run: Run, classifier: Classifier | None = None) -> None:
    """Print what was tuned: how the classifier decides or, without one, what is common to all numbers of passes."""
    if run.choice is None:
        return
    how = "the plain prediction"
    if run.choice.strength:
        combine = run.choice.combine if classifier is None else classifier.combine
        how = f"strength {run.choice.strength:g}, {combine}"
    temperature = "" if classifier is None else f", temperature {classifier.temperature:.3g}"
    print(f"Decided by {how}{temperature} (tuned on {run.choice.images:,} held-out images); --paper-rule ignores this.")


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
    """Return the preset of that name, the deformation in a JSON file, or the one that "module:attribute" names."""
    from apac.deform.base import Deformation
    from apac.models.import_path import failure, import_object, is_import_path
    from apac.runs.presets import PRESETS

    if text in PRESETS:
        return PRESETS[text]()
    if text.endswith(".json"):
        return _deformation_in(Path(text))
    if not is_import_path(text):
        raise InputError(
            f"there is no deformation {text!r}; choose one of {', '.join(PRESETS)}, a file that ends in .json, or "
            f"module:attribute."
        )
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


def _deformation_in(path: Path) -> Deformation:
    """Read a deformation from a file with the JSON object of `Deformation.to_json`."""
    from apac.deform.base import Deformation

    try:
        with open_regular(path) as file:
            payload = parse_json(file.read(limits.JSON_BYTES + 1))
    except OSError as error:
        raise InputError(f"the deformation {path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:  # not UTF-8, or not JSON
        raise InputError(f"the deformation {path} is not valid JSON: {str(error).rstrip('.')}.") from error
    try:
        return Deformation.from_json(payload)
    except InputError as error:
        raise InputError(f"in {path}, {error}") from error
