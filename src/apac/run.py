"""Run: what training leaves behind. Make one, load one, get its classifier (joins training and classify)."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from apac import data, models
from apac.classify.classifier import DEFAULT_RULE, Classifier
from apac.classify.decision import Combine
from apac.classify.stopping import FixedPasses
from apac.data.normalise import Normalisation, Scaling, normalisation_from
from apac.data.zca import fit as fit_whitening
from apac.errors import InputError
from apac.progress import Progress, silent
from apac.randomness import generator
from apac.storage import read_json, read_tensors, write_json, write_tensors
from apac.training import checkpoint, loop
from apac.training.config import TrainConfig

FORMAT = 1  # of a run folder; another number is refused


@dataclass(frozen=True, eq=False)
class Run:
    """A trained network with all that its decision needs: training and testing cannot disagree."""

    config: TrainConfig
    network: nn.Module
    normalisation: Normalisation
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    history: tuple[loop.Epoch, ...]
    versions: dict[str, str]
    folder: Path | None  # where it is stored, if it is

    def normalise(self, images: Tensor) -> Tensor:
        """Bytes (N, C, H, W) to what the network was trained on."""
        if images.dtype != torch.uint8 or tuple(images.shape[1:]) != self.image_shape:
            raise InputError(
                f"this run normalises uint8 images of shape (N, {', '.join(map(str, self.image_shape))}), "
                f"got {images.dtype} {tuple(images.shape)}."
            )
        return self.normalisation.apply(images)

    def classifier(
        self,
        rule: FixedPasses = DEFAULT_RULE,
        *,
        seed: int = 0,
        combine: Combine = "product",
        independent: bool = False,
    ) -> Classifier:
        """The decision rule for this network; the deformation is the one that it was trained with."""
        assert self.config.deformation is not None
        return Classifier(
            self.network,
            self.config.deformation,
            rule=rule,
            seed=seed,
            combine=combine,
            independent=independent,
            image_shape=self.image_shape,
        )


def train(
    config: TrainConfig,
    out: str | os.PathLike[str] | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress = silent,
) -> Run:
    """Train a network and return its run, which `load(out)` returns again; without `out` nothing is written.

    A folder that holds a run is refused, unless it is to be resumed or overwritten. Ctrl-C saves a checkpoint.
    """
    folder = None if out is None else Path(out)
    if folder is not None:
        _claim(folder, config, resume=resume, overwrite=overwrite)
        if _complete(folder):
            return load(folder)
    dataset = data.load(config.data, progress=progress)
    # Held-out images are not trained on in any version: a deformed image tells too much of its original (section 2.1).
    order = torch.randperm(len(dataset.train_images), generator=generator(config.seed, "held out", 0))
    held = round(config.validation * len(order))
    held_images, held_labels = dataset.train_images[order[:held]], dataset.train_labels[order[:held]]
    images, labels = dataset.train_images[order[held:]], dataset.train_labels[order[held:]]
    normalisation = _fit(images, config, progress)

    state = loop.begin(config)
    arguments = (
        state,
        config,
        normalisation.apply(images),
        labels,
        (normalisation.apply(held_images), held_labels),
    )
    if folder is None:
        loop.advance(*arguments, progress=progress)
    else:
        _advance_on_disk(folder, arguments, progress)
    run = Run(
        config=config,
        network=state.result.eval(),
        normalisation=normalisation,
        classes=dataset.classes,
        image_shape=dataset.image_shape,
        history=tuple(state.history),
        versions=_versions(),
        folder=folder,
    )
    if folder is not None:
        _save(run, folder)
    return run


def _fit(images: Tensor, config: TrainConfig, progress: Progress) -> Normalisation:
    if not config.whitened:
        return Scaling()
    progress("whitening", 0, 1)
    whitening = fit_whitening(images)
    progress("whitening", 1, 1)
    return whitening


def load(folder: str | os.PathLike[str]) -> Run:
    """The run that a training left in a folder."""
    folder = Path(folder)
    form, config = _read_form(folder)
    if not form["complete"]:
        raise InputError(f"the training in {folder} is not finished; go on with it: apac train --resume --out {folder}")
    tensors, _ = read_tensors(folder / "weights.safetensors")
    network = models.build(config.network, generator=generator(config.seed, "initial weights", 0))
    parts: dict[str, dict[str, Tensor]] = {"network": {}, "normalisation": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = tensor
    try:
        network.load_state_dict(parts["network"])
        normalisation = normalisation_from(form["normalisation"], parts["normalisation"])
    except (RuntimeError, KeyError) as error:
        raise InputError(f"{folder / 'weights.safetensors'} does not belong to this run; train it again.") from error
    channels, height, width = form["image_shape"]
    return Run(
        config=config,
        network=network.eval(),
        normalisation=normalisation,
        classes=tuple(form["classes"]),
        image_shape=(channels, height, width),
        history=tuple(loop.Epoch(**epoch) for epoch in form["history"]),
        versions=form["versions"],
        folder=folder,
    )


def stored_config(folder: Path) -> TrainConfig:
    """The configuration of a run, finished or not."""
    return _read_form(folder)[1]


def _claim(folder: Path, config: TrainConfig, *, resume: bool, overwrite: bool) -> None:
    """Make the folder this training's, or say why not."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; a run needs a folder.")
    holds_run = (folder / "run.json").exists()
    if holds_run and overwrite:
        for name in ("run.json", "weights.safetensors", "checkpoint.safetensors"):
            (folder / name).unlink(missing_ok=True)
    elif holds_run and not resume:
        raise InputError(
            f"{folder} already holds a run; go on with it by --resume, replace it by --overwrite, "
            f"or choose another folder."
        )
    elif holds_run and stored_config(folder) != config:
        raise InputError(
            f"{folder} holds a run of another configuration; resume it with its own, or choose another folder."
        )
    if not (folder / "run.json").exists():
        write_json(folder / "run.json", {"format": FORMAT, "complete": False, "config": config.to_json()})


def _complete(folder: Path) -> bool:
    return bool(_read_form(folder)[0]["complete"])


def _advance_on_disk(folder: Path, arguments: Any, progress: Progress) -> None:
    state, config = arguments[:2]
    path = folder / "checkpoint.safetensors"
    if path.exists():
        checkpoint.restore(path, state)
    with checkpoint.stop_on_signal() as stop:
        try:
            loop.advance(*arguments, after_step=checkpoint.Checkpointer(path, stop), progress=progress)
        except checkpoint.Stopped:
            raise KeyboardInterrupt(
                f"stopped in epoch {len(state.history) + 1} of {config.epochs}, and nothing is lost; "
                f"go on with: apac train --resume --out {folder}"
            ) from None


def _save(run: Run, folder: Path) -> None:
    tensors = {f"network.{name}": tensor for name, tensor in run.network.state_dict().items()}
    tensors |= {f"normalisation.{name}": tensor for name, tensor in run.normalisation.tensors().items()}
    write_tensors(folder / "weights.safetensors", tensors, {"network": run.config.network})
    form = {
        "format": FORMAT,
        "complete": True,
        "config": run.config.to_json(),
        "normalisation": run.normalisation.kind,
        "classes": list(run.classes),
        "image_shape": list(run.image_shape),
        "versions": run.versions,
        "history": [epoch.to_json() for epoch in run.history],
    }
    write_json(folder / "run.json", form)
    (folder / "checkpoint.safetensors").unlink(missing_ok=True)


def _read_form(folder: Path) -> tuple[dict[str, Any], TrainConfig]:
    """What run.json says, and the configuration in it."""
    path = folder / "run.json"
    if not path.exists():
        raise InputError(
            f"{folder} holds no run (there is no run.json in it); make one with: apac train --out {folder}"
        )
    form = read_json(path)
    found = form.get("format") if isinstance(form, dict) else None
    if found != FORMAT:
        raise InputError(
            f"the run in {folder} was made by another version of apac (format {found}, this one reads {FORMAT}); "
            f"train it again, or use that version."
        )
    needed = {"complete", "config"}
    if form.get("complete"):
        needed |= {"normalisation", "classes", "image_shape", "history", "versions"}
    try:
        if not needed <= form.keys():
            raise KeyError(*(needed - form.keys()))
        return form, TrainConfig.from_json(form["config"])
    except (KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged ({error}); train it again with --overwrite.") from error


def _versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("augmented-pattern-classification", "torch", "numpy")}
    return packages | {"python": platform.python_version(), "machine": f"{platform.machine()}, {os.cpu_count()} cores"}
