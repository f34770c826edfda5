"""The folder of a run.

It contains run.json with the settings and the history, weights.safetensors (checkpoint.safetensors until training
ends), tuning.json if it was tuned, and scores/, where evaluations cache sums of passes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor

import apac.adapters.transforms.libraries  # noqa: F401  (Deformation.from_json finds the classes that are imported)
from apac import limits
from apac.data import NAMES
from apac.deform.base import Deformation, check_stored
from apac.errors import InputError, StorageError
from apac.runs.storage import Shapes, read_json, read_tensors, write_json, write_tensors
from apac.training.config import TrainConfig
from apac.validation import quoted, shortened

FORMAT = 2  # runs in any other format are rejected
REMEDY = "train it again with overwrite=True"
PRETRAINED = Path(__file__).parent.parent / "pretrained"  # runs shipped with the package
# Of apac evaluate and apac tune; the results on other data are in EVALUATIONS.
RESULTS = (
    *("evaluation.json", "evaluation.csv", "classes.csv", "confusion.csv", "confusion.png", "misclassified.csv"),
    *("reliability.png", "risk.png", "certified.json", "certified.csv", "passes.png", "reliability.json"),
    *("tuning.json", "tuning.png"),
)
EVALUATIONS = "evaluations"


@dataclass(frozen=True)
class RunSettings:
    """The arguments that define a training."""

    network: str | None  # a name or an import path; None for a module
    data: str | None  # a name or the absolute path of a folder; None for data in memory
    deformation: Deformation
    config: TrainConfig  # with all values resolved

    def to_json(self) -> dict[str, Any]:
        return {
            "network": self.network,
            "data": self.data,
            "deformation": self.deformation.to_json(),
            "config": self.config.to_json(),
        }

    @staticmethod
    def from_json(payload: dict[str, Any]) -> RunSettings:
        for name in ("network", "data"):
            if not isinstance(payload[name], str | None):
                raise TypeError(name)
        return RunSettings(
            payload["network"],
            payload["data"],
            Deformation.from_json(payload["deformation"]),
            TrainConfig.from_json(payload["config"]),
        )

    def differences(self, other: RunSettings) -> str:
        """Describe the differences, for example "epochs 5, not 6; another deformation"."""
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in ("network", "data")]
        names = [field.name for field in fields(TrainConfig) if field.compare]
        pairs += [(name, getattr(self.config, name), getattr(other.config, name)) for name in names]
        parts = [f"{name} {_text(ours)}, not {_text(theirs)}" for name, ours, theirs in pairs if ours != theirs]
        if self.deformation != other.deformation:
            parts.append("another deformation")
        return "; ".join(parts)


def _text(value: Any) -> str:
    return shortened(value, limits.QUOTED_TEXT)


def check_free(folder: Path, settings: RunSettings, *, resume: bool, overwrite: bool) -> None:
    """Raise InputError if this training must not use the folder. Nothing is changed."""
    check_stored(settings.deformation.to_json())
    if resume and overwrite:
        raise InputError("choose resume=True to continue a run or overwrite=True to replace it, not both.")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; a run needs a folder.")
    if settings.data is not None and settings.data not in NAMES and not holds_run(folder):
        images = Path(settings.data).resolve()
        if images.is_dir() and folder.resolve().is_relative_to(images):
            raise InputError(f"{folder} is in the folder of the images; choose another folder for the run.")
    if not holds_run(folder) or overwrite:
        return
    if not resume:
        raise InputError(
            f"{folder} already holds a run; continue it with resume=True, replace it with overwrite=True, or choose "
            f"another folder."
        )
    stored = read_settings(folder)
    if stored != settings:
        raise InputError(
            f"{folder} holds a run with other settings ({stored.differences(settings)}); resume it with the same "
            f"settings, or choose another folder."
        )


def claim(folder: Path, settings: RunSettings, digest: str, *, resume: bool) -> None:
    """Reserve the folder for this training, on images with this digest.

    Files of an earlier training are removed, unless it is resumed.
    """
    if resume and holds_run(folder):
        check_images(folder, digest)
        return
    checkpoint_path(folder).unlink(missing_ok=True)  # first: a kill must not leave it beside the new settings
    write_json(folder / "run.json", {"format": FORMAT, "complete": False, **settings.to_json(), "images": digest})
    _discard_state(folder)


def check_images(folder: Path, digest: str) -> None:
    """Raise InputError if the run was trained on images with another digest."""
    if not may_have_been_trained_on(folder, digest):
        raise InputError(f"the images differ from those of the training in {folder}; start again with overwrite=True.")


def was_trained_on(folder: Path, digest: str) -> bool:
    """Return whether the run is known to have been trained on images with this digest."""
    return bool(_read_payload(folder).get("images") == digest)


def may_have_been_trained_on(folder: Path, digest: str) -> bool:
    """Return whether the run was trained on images with this digest, or does not record one."""
    return bool(_read_payload(folder).get("images", digest) == digest)


def discard(folder: Path) -> None:
    """Remove the files of a run. Other files in the folder are not touched."""
    _discard_state(folder)
    (folder / "run.json").unlink(missing_ok=True)


def _discard_state(folder: Path) -> None:
    checkpoint_path(folder).unlink(missing_ok=True)
    (folder / "weights.safetensors").unlink(missing_ok=True)
    for subfolder in (scores_path(folder), folder / EVALUATIONS):
        shutil.rmtree(subfolder, ignore_errors=True)
    for name in RESULTS:
        (folder / name).unlink(missing_ok=True)


def release(folder: Path) -> None:
    """Undo `claim` for a training that failed before its first checkpoint."""
    if not checkpoint_path(folder).exists():
        (folder / "run.json").unlink(missing_ok=True)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def checkpoint_path(folder: Path) -> Path:
    return folder / "checkpoint.safetensors"


def scores_path(folder: Path) -> Path:
    """Return the folder in which evaluations cache sums of passes."""
    return folder / "scores"


def holds_run(folder: Path) -> bool:
    return (folder / "run.json").exists()


def is_complete(folder: Path) -> bool:
    return holds_run(folder) and bool(_read_payload(folder)["complete"])


def find(folder: Path) -> Path:
    """Return the folder, or the shipped run of that name if the folder holds no run."""
    shipped = PRETRAINED / folder
    return shipped if not holds_run(folder) and holds_run(shipped) else folder


def read_settings(folder: Path) -> RunSettings:
    """Return the settings of a complete or incomplete run."""
    payload = _read_payload(folder)
    try:
        return RunSettings.from_json(payload)
    except (AttributeError, KeyError, TypeError) as error:
        raise StorageError(f"{folder / 'run.json'} is damaged; {REMEDY}.") from error


def write(folder: Path, payload: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Store a complete run. run.json is replaced last, so that an interruption leaves a resumable training."""
    write_tensors(folder / "weights.safetensors", tensors, {})
    write_json(folder / "run.json", {"format": FORMAT, "complete": True, **payload})
    checkpoint_path(folder).unlink(missing_ok=True)


def mismatch(folder: Path) -> StorageError:
    """Return the error for files that do not belong together."""
    return StorageError(f"the files in {folder} are damaged or do not match each other or the network; {REMEDY}.")


def read(folder: Path) -> dict[str, Any]:
    """Return the payload that `write` stored."""
    payload = _read_payload(folder)
    if not payload["complete"]:
        raise InputError(f"the training in {folder} is not finished; continue it with resume=True.")
    return payload


def read_weights(folder: Path, check: Callable[[Shapes], None]) -> dict[str, Tensor]:
    """Return the tensors that `write` stored. `check` sees their shapes before they are read."""
    return read_tensors(folder / "weights.safetensors", REMEDY, check)[0]


def _read_payload(folder: Path) -> dict[str, Any]:
    path = folder / "run.json"
    if not path.exists():
        shipped = ", ".join(sorted(child.name for child in PRETRAINED.iterdir()))
        raise InputError(
            f"{folder} holds no run (it has no run.json); train one, or choose one that is shipped with the "
            f"package: {shipped}."
        )
    payload = read_json(path, REMEDY)
    stored_format = payload.get("format") if isinstance(payload, dict) else None
    if stored_format != FORMAT:
        raise InputError(
            f"the run in {folder} has format {quoted(stored_format)}, and this version of apac reads format {FORMAT}; "
            f"use the version that wrote it, or {REMEDY}."
        )
    if not {"complete", "config"} <= payload.keys():
        raise StorageError(f"{path} is damaged; {REMEDY}.")
    return payload  # type: ignore[no-any-return]
