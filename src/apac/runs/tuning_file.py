"""tuning.json: the choice of `apac.tune`, stored beside a run."""

from __future__ import annotations

from pathlib import Path

from apac.classify.choice import Choice
from apac.deform.base import Deformation
from apac.errors import InputError, StorageError
from apac.runs.storage import read_json, write_json

NAME = "tuning.json"
REMEDY = "tune the run again, or remove the file"


def write_choice(folder: Path, choice: Choice, deformation: Deformation) -> Path:
    """Store the choice for a run with this deformation, and return the path of the file."""
    path = folder / NAME
    write_json(path, {"deformation": deformation.to_json(), "choice": choice.to_json()})
    return path


def read_choice(folder: Path, deformation: Deformation) -> Choice | None:
    """Return the choice in a folder, None if there is none. Raise an error if it is for another deformation."""
    path = folder / NAME
    if not path.exists():
        return None
    payload = read_json(path, REMEDY)
    try:
        tuned, choice = Deformation.from_json(payload["deformation"]), Choice.from_json(payload["choice"])
    except (AttributeError, InputError, LookupError, TypeError, ValueError) as error:
        raise StorageError(f"{path} is damaged; {REMEDY}.") from error
    if tuned != deformation:
        raise InputError(f"{path} belongs to a run with another deformation; {REMEDY}.")
    return choice
