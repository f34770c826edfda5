"""A run on disk: run.json says what it is; weights.safetensors, or checkpoint.safetensors until it is trained;
scores/ for the sums of passes that evaluations made."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor

from apac.errors import InputError
from apac.runs.storage import read_json, read_tensors, write_json, write_tensors
from apac.training.config import TrainConfig

FORMAT = 1  # another number is refused
AGAIN = "train it again with --overwrite"
PRETRAINED = Path(__file__).parent / "pretrained"  # runs that come with the package
RESULTS = ("evaluation.json", "evaluation.csv", "certified.json", "certified.csv", "passes.png")  # of apac evaluate


def check_free(folder: Path, config: TrainConfig, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that this training may not use; changes nothing."""
    if resume and overwrite:
        raise InputError("choose --resume to go on with a run or --overwrite to replace it, not both.")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; a run needs a folder.")
    if not holds_run(folder) or overwrite:
        return
    if not resume:
        raise InputError(
            f"{folder} already holds a run; go on with it by --resume, replace it by --overwrite, "
            f"or choose another folder."
        )
    there = read_config(folder)
    if there != config:
        raise InputError(
            f"{folder} holds a run of another configuration ({_differences(there, config)}); resume it with its own, "
            f"or choose another folder."
        )


def _differences(there: TrainConfig, asked: TrainConfig) -> str:
    found = []
    for name in (each.name for each in fields(asked) if each.compare):
        ours, theirs = getattr(asked, name), getattr(there, name)
        if ours != theirs:
            found.append(f"another {name}" if name == "deformation" else f"{name} {theirs}, not {ours}")
    return "; ".join(found)


def claim(folder: Path, config: TrainConfig, images: str, *, resume: bool) -> None:
    """Make the folder this training's, on images with this digest. What another left there goes, unless it is
    resumed."""
    if resume and holds_run(folder):
        if _read_form(folder).get("images", images) != images:
            raise InputError(
                f"the images of {config.data} are not those that the training in {folder} began with; begin again with "
                f"--overwrite."
            )
        return
    form = {"format": FORMAT, "complete": False, "config": config.to_json(), "images": images}
    write_json(folder / "run.json", form)
    _discard_state(folder)


def discard(folder: Path) -> None:
    """Remove a run, and nothing else that the folder may hold."""
    _discard_state(folder)
    (folder / "run.json").unlink(missing_ok=True)


def _discard_state(folder: Path) -> None:
    checkpoint_of(folder).unlink(missing_ok=True)
    (folder / "weights.safetensors").unlink(missing_ok=True)
    shutil.rmtree(scores_of(folder), ignore_errors=True)
    for name in RESULTS:
        (folder / name).unlink(missing_ok=True)


def release(folder: Path) -> None:
    """Undo `claim` for a training that failed before it left a checkpoint."""
    if not checkpoint_of(folder).exists():
        (folder / "run.json").unlink(missing_ok=True)
        if not any(folder.iterdir()):
            folder.rmdir()


def checkpoint_of(folder: Path) -> Path:
    return folder / "checkpoint.safetensors"


def scores_of(folder: Path) -> Path:
    """Where evaluations keep the sums of passes."""
    return folder / "scores"


def resume_command(folder: Path) -> str:
    return f"apac train --resume --out {shlex.quote(str(folder))}"


def holds_run(folder: Path) -> bool:
    return (folder / "run.json").exists()


def is_complete(folder: Path) -> bool:
    return holds_run(folder) and bool(_read_form(folder)["complete"])


def find(folder: Path) -> Path:
    """The folder itself, or the run of that name that comes with the package, where no folder holds one."""
    shipped = PRETRAINED / folder
    return shipped if not holds_run(folder) and holds_run(shipped) else folder


def read_config(folder: Path) -> TrainConfig:
    """The configuration of a run, finished or not."""
    form = _read_form(folder)
    try:
        return TrainConfig.from_json(form["config"])
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder / 'run.json'} is damaged; {AGAIN}.") from error


def write(folder: Path, form: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Store a complete run. Until run.json is replaced, the last step, the folder holds the training under way."""
    write_tensors(folder / "weights.safetensors", tensors, {})
    write_json(folder / "run.json", {"format": FORMAT, "complete": True, **form})
    checkpoint_of(folder).unlink(missing_ok=True)


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `write` stored."""
    form = _read_form(folder)
    if not form["complete"]:
        raise InputError(f"the training in {folder} is not finished; go on with it: {resume_command(folder)}")
    return form, read_tensors(folder / "weights.safetensors", AGAIN)[0]


def _read_form(folder: Path) -> dict[str, Any]:
    path = folder / "run.json"
    if not path.exists():
        shipped = ", ".join(sorted(each.name for each in PRETRAINED.iterdir()))
        raise InputError(
            f"{folder} holds no run (there is no run.json in it); make one with apac train, or give one that comes "
            f"with the package: {shipped}."
        )
    form = read_json(path, AGAIN)
    found = form.get("format") if isinstance(form, dict) else None
    if found != FORMAT:
        raise InputError(
            f"the run in {folder} was made by another version of apac (format {found}, this one reads {FORMAT}); "
            f"use that version, or {AGAIN}."
        )
    if not {"complete", "config"} <= form.keys():
        raise InputError(f"{path} is damaged; {AGAIN}.")
    return form  # type: ignore[no-any-return]
