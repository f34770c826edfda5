"""Run: what training leaves behind. Make one, load one, get its classifier (joins training and classify)."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from apac import data, models
from apac.classify.classifier import Classifier
from apac.classify.combine import Combine
from apac.classify.rules.base import Rule
from apac.classify.rules.certified import Certified
from apac.classify.rules.fixed import FixedPasses
from apac.data.base import Dataset, check_pixels
from apac.data.folder import load as load_folder
from apac.data.normalize import Normalization, Scaling, Standardizing, normalization_from
from apac.data.zca import fit as fit_whitening
from apac.deform.compose import Compose
from apac.errors import InputError
from apac.progress import Progress, no_progress
from apac.randomness import generator
from apac.runs import folder as run_folder
from apac.runs import provenance
from apac.training import checkpoint, loop
from apac.training.config import TrainConfig


@dataclass(frozen=True, eq=False)
class Run:
    """A trained network with all that its decision needs: training and testing cannot disagree."""

    config: TrainConfig
    network: nn.Module
    normalization: Normalization
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    history: tuple[loop.Epoch, ...]
    versions: dict[str, str]
    folder: Path | None  # where it is stored, if it is

    def normalize(self, images: Tensor) -> Tensor:
        """Bytes (N, C, H, W) to what the network was trained on."""
        check_pixels(images)
        if tuple(images.shape[1:]) != self.image_shape:
            raise InputError(
                f"this run normalizes images of shape (N, {', '.join(map(str, self.image_shape))}), "
                f"got {tuple(images.shape)}."
            )
        return self.normalization.apply(images)

    def classifier(
        self,
        rule: Rule | None = None,
        *,
        seed: int = 0,
        combine: Combine = "product",
        independent: bool = False,
    ) -> Classifier:
        """The decision rule for this network; the deformation is the one that it was trained with.

        Without a rule: certified, or for a network that was trained on original data, whose passes are all alike, one
        pass.
        """
        assert self.config.deformation is not None
        if rule is None:
            rule = FixedPasses(1) if self.config.deformation == Compose() else Certified()
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
    progress: Progress = no_progress,
) -> Run:
    """Train a network and return its run, which `load(out)` returns again; without `out` nothing is written.

    A folder that holds a run is refused, unless it is to be resumed or overwritten. Ctrl-C saves a checkpoint.
    """
    folder = None if out is None else Path(out)
    versions = _versions()
    if folder is not None:
        run_folder.check_free(folder, config, resume=resume, overwrite=overwrite)
        if resume and run_folder.is_complete(folder):
            return load(folder)
    dataset = dataset_of(config, progress=progress)
    config.check_classes(len(dataset.classes))
    # Held-out images are not trained on in any version: a deformed image tells too much of its original (section 2.1).
    order = torch.randperm(len(dataset.train_images), generator=generator(config.seed, "held out", 0))
    held = round(config.validation * len(order))
    if held == len(order):
        raise InputError(f"validation={config.validation:g} holds out all {held:,} images and leaves none to train on.")
    held_images, held_labels = dataset.train_images[order[:held]], dataset.train_labels[order[:held]]
    images, labels = dataset.train_images[order[held:]], dataset.train_labels[order[held:]]
    untrained = sorted(set(range(len(dataset.classes))) - set(labels.tolist()))
    if untrained:
        name = dataset.classes[untrained[0]]
        raise InputError(f"all images of class {name!r} are held out; add some, or train with --validation 0.")
    normalization = _fit(images, config, progress)
    trained = (normalization.apply(images), labels)
    held_out = (normalization.apply(held_images), held_labels)

    state = loop.begin(config, channels=dataset.image_shape[0], classes=len(dataset.classes))
    if folder is None:
        loop.advance(state, config, *trained, held_out, progress=progress)
    else:
        with checkpoint.stop_on_signal() as stop:
            run_folder.claim(folder, config, _digest(images, labels), resume=resume)
            keep = checkpoint.Checkpointer(run_folder.checkpoint_of(folder), config, stop)
            try:
                keep.restore(state, dataset.image_shape)
                loop.advance(state, config, *trained, held_out, after_step=keep, progress=progress)
            except checkpoint.Stopped:
                epoch = min(len(state.history) + 1, config.epochs)
                raise KeyboardInterrupt(
                    f"stopped in epoch {epoch} of {config.epochs}, and its state is kept; "
                    f"go on with: {run_folder.resume_command(folder)}"
                ) from None
            except BaseException:
                run_folder.release(folder)
                raise
    run = Run(
        config=config,
        network=state.result.eval(),
        normalization=normalization,
        classes=dataset.classes,
        image_shape=dataset.image_shape,
        history=tuple(state.history),
        versions=versions,
        folder=folder,
    )
    if folder is not None:
        _save(run, folder)
    return run


def load(folder: str | os.PathLike[str]) -> Run:
    """The run that a training left in a folder, or one that comes with the package, "mnist-cnn" or "cifar10-cnn"."""
    folder = run_folder.find(Path(folder))
    config = run_folder.read_config(folder)
    form, tensors = run_folder.read(folder)
    parts: dict[str, dict[str, Tensor]] = {"network": {}, "normalization": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        parts.setdefault(part, {})[rest] = tensor
    try:
        channels, height, width = form["image_shape"]
        classes = tuple(map(str, form["classes"]))
        random = generator(config.seed, "initial weights", 0)
        network = models.build(config.network, generator=random, channels=channels, classes=len(classes))
        network.load_state_dict(parts["network"])
        return Run(
            config=config,
            network=network.eval(),
            normalization=normalization_from(form["normalization"], parts["normalization"]),
            classes=classes,
            image_shape=(channels, height, width),
            history=tuple(loop.Epoch(**epoch) for epoch in form["history"]),
            versions=dict(form["versions"]),
            folder=folder,
        )
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the files in {folder} do not belong together or are damaged; {run_folder.AGAIN}.") from error


def dataset_of(config: TrainConfig, *, channels: int | None = None, progress: Progress = no_progress) -> Dataset:
    """What a run was, or is to be, trained and tested on; the channels of a folder's images if they are known."""
    if config.folder is None:
        return data.load(config.data, progress=progress)
    return load_folder(config.folder, on_unreadable=config.corrupt, channels=channels, progress=progress)


def images_to_test(run: Run, *, progress: Progress = no_progress) -> tuple[Tensor, Tensor]:
    """The normalized test images of a run and their labels; refused where the classes are not the run's any more."""
    dataset = dataset_of(run.config, channels=run.image_shape[0], progress=progress)
    if dataset.classes != run.classes:
        differing = sorted(set(dataset.classes) ^ set(run.classes))
        raise InputError(
            f"{run.config.data} has other classes than the run was trained on: {', '.join(differing)}; train it again."
        )
    if not len(dataset.test_images):
        raise InputError(f"{run.config.data} has no images to test on; add some to each class.")
    return run.normalize(dataset.test_images), dataset.test_labels


def _digest(images: Tensor, labels: Tensor) -> str:
    digest = hashlib.blake2b(images.numpy().data, digest_size=8)
    digest.update(labels.numpy().data)
    return digest.hexdigest()


def _fit(images: Tensor, config: TrainConfig, progress: Progress) -> Normalization:
    if config.folder is not None:
        return Standardizing.fit(images)
    if not config.whitened:
        return Scaling()
    progress("whitening", 0, 1)
    whitening = fit_whitening(images)
    progress("whitening", 1, 1)
    return whitening


def _save(run: Run, folder: Path) -> None:
    tensors = {f"network.{name}": tensor for name, tensor in run.network.state_dict().items()}
    tensors |= {f"normalization.{name}": tensor for name, tensor in run.normalization.tensors().items()}
    form = {
        "config": run.config.to_json(),
        "normalization": run.normalization.kind,
        "classes": list(run.classes),
        "image_shape": list(run.image_shape),
        "versions": run.versions,
        "history": [epoch.to_json() for epoch in run.history],
    }
    run_folder.write(folder, form, tensors)


def _versions() -> dict[str, str]:
    here = provenance.describe()
    packages = here.pop("versions")
    return {name: str(value) for name, value in (packages | here).items() if value is not None}
