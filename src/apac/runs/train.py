"""apac.train: train a network on deformed data."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from apac import models
from apac.data.base import Dataset, scale_pixels
from apac.data.image_file import without_warnings
from apac.data.items import DatasetImages, translate_worker_errors
from apac.data.streamed import FileImages
from apac.data.zca import Whitening
from apac.deform.base import Deformation
from apac.distributed.ranks.gradients import GradientSum
from apac.distributed.ranks.group import Group
from apac.progress import Progress, no_progress
from apac.runs import folder as run_folder
from apac.runs import provenance
from apac.runs.checkpointer import Checkpointer
from apac.runs.folder import RunSettings
from apac.runs.initial_weights import load_weights
from apac.runs.network_check import check_network
from apac.runs.run import Run, build_network, load, save
from apac.runs.split import Split, fit_normalization, split_images
from apac.runs.summary import TrainingSummary
from apac.runs.train_settings import check_ranks, check_values, validate_settings
from apac.runs.training_data import load_data
from apac.training.config import TrainConfig
from apac.training.device import choose_device
from apac.training.freeze import frozen
from apac.training.loop import init_state, run_epochs
from apac.training.precision import check_precision
from apac.validation import validate_path

DEFAULT = TrainConfig()


def train(
    network: str | nn.Module,
    data: Any,
    deformation: Deformation | None = None,
    *,
    config: TrainConfig = DEFAULT,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    device: str | torch.device | None = None,
    cache: str | os.PathLike[str] | None = None,
    stream: bool = False,
    workers: int = 0,
    progress: Progress = no_progress,
    should_stop: Callable[[], bool] | None = None,
    on_start: Callable[[TrainingSummary], None] | None = None,
) -> Run:
    """Train a network on randomly deformed data and return the run, which `load(out)` loads again.

    Parameters
    ----------
    network
        A name: "resnet", for images of any size from 16 × 16, "cifar10-modern", for 32 × 32, or one of the paper's,
        "mnist-cnn", "mnist-mlp", "cifar10-cnn" and "cifar10-mlp"; "timm:NAME", a network of the library timm;
        "package.module:function", which builds a module from (image_shape, classes); or a module, which is trained in
        place from its current weights and left on the CPU in evaluation mode (if an exception is raised, in its
        previous mode). Networks return logits (N, K). `config.weights` names a file with initial weights for any.
    data
        A name ("mnist-5k", "mnist", "cifar10"); a folder with a subfolder of images per class, which are read at
        `config.size`, by default the size that the network takes or one chosen from the files; a pair of images
        (N, C, H, W) and labels (N,); an `apac.Dataset`; or a map-style torch Dataset of (image, label). A torch Dataset
        is read into memory once, unless there is a `cache` or it is streamed. uint8 pixels are deformed in 0 … 1 and
        then standardized per channel, but those of MNIST are not standardized, and the paper's networks for CIFAR-10
        whiten them before the deformation. Floating-point images are not normalized.
    deformation
        The default is the paper's deformation for its data sets and networks, and `presets.photos()` for a folder.
        `Compose()` disables deformation.
    config
        The training settings.
    out
        The folder of the run; by default nothing is written. If it already holds a run, set `resume` to continue
        it or `overwrite` to replace it. Resumed training gives the same result as uninterrupted training.
    device
        Where the network is trained, such as "cpu" or "cuda"; by default an accelerator if torch finds one. The network
        of the run is on the CPU.
    cache
        A folder for the pixels of a folder or a torch Dataset, which then stay on the disk instead of in memory: they
        are decoded once into a file of uint8, and later runs use it again, unless the names, sizes or times of the
        files have changed, or any of 16 items of the Dataset. `progress` reports its size; remove the folder when it
        is no longer needed, or when other items of a Dataset have changed.
    stream
        Read the files of a folder or the items of a torch Dataset again for every batch, while the network trains on
        the one before, instead of holding their pixels in memory or in a cache. The result is the same. A file or item
        that changes ends the training: random transforms belong to the deformation.
    workers
        Processes of a DataLoader that read a torch Dataset; 0 reads it in this process.
    should_stop
        Called after each step. When it returns True, a checkpoint is saved and `apac.errors.Interrupted` is raised.
    on_start
        Called before the first step with a summary of the files, the images, the deformation and the network.

    Examples
    --------
    >>> import apac, torch
    >>> images, labels = torch.rand(40, 1, 8, 8), torch.arange(40) % 2
    >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
    >>> apac.train(network, (images, labels), apac.Flip(), config=apac.TrainConfig(epochs=1, validation_fraction=0))
    Run(Sequential on data in memory, 2 classes, 1 epoch)
    """
    group = Group.current()
    settings = group.together(lambda: validate_settings(network, data, deformation, config))
    target = group.together(lambda: choose_device(device))
    check_ranks(
        group,
        settings,
        {
            "out": None if out is None else str(out),
            "resume": resume,
            "overwrite": overwrite,
            "cache": None if cache is None else str(cache),
            "stream": stream,
            "device": target.type,
        },
    )
    module = network if isinstance(network, nn.Module) else None
    folder = None if out is None else validate_path("out", out)
    complete = group.on_first(lambda: _complete(folder, settings, resume=resume, overwrite=overwrite))
    if complete is not None and isinstance(data, str | os.PathLike):  # the settings identify the data
        return group.together(lambda: load(complete, module))
    if complete is None:
        group.together(lambda: check_precision(settings.config.precision, target))
    options = {"cache": None if cache is None else validate_path("cache", cache), "workers": workers, "stream": stream}
    # One rank of a machine decodes into the cache before the others use it.
    load_all = group.together if cache is None else group.in_turns
    dataset = load_all(lambda: _load(data, settings, config, progress, **options))
    split = group.together(lambda: split_images(dataset, settings.config))
    # Pillow warns of files when they are decoded.
    streaming = without_warnings() if stream and isinstance(data, str | os.PathLike) else nullcontext()
    with _mode_restored_on_failure(module), streaming, translate_worker_errors():
        if group.size > 1:
            group.require_same({"the data": f"with digest {split.digest}"})
        if complete is not None:
            run_folder.check_images(complete, split.digest)
            return load(complete, module)
        return _train(
            module, dataset, split, settings, folder, resume, target, progress, should_stop, on_start, group=group
        )


def _complete(folder: Path | None, settings: RunSettings, *, resume: bool, overwrite: bool) -> Path | None:
    """Return the folder if it holds the complete run to resume. Raise InputError if it must not be used."""
    if folder is None:
        return None
    run_folder.check_free(folder, settings, resume=resume, overwrite=overwrite)
    return folder if resume and run_folder.is_complete(folder) else None


def _load(data: Any, settings: RunSettings, config: TrainConfig, progress: Progress, **options: Any) -> Dataset:
    with translate_worker_errors():
        dataset = load_data(
            data,
            size=config.size or models.fixed_size(settings.network),
            fit=config.fit,
            on_unreadable=config.on_unreadable,
            progress=progress,
            **options,
        )
    check_values(dataset.train_images, settings, config)
    return dataset


@contextmanager
def _mode_restored_on_failure(network: nn.Module | None) -> Iterator[None]:
    modes = [] if network is None else [(part, part.training) for part in network.modules()]
    try:
        yield
    except BaseException:
        for part, mode in modes:
            part.training = mode
        raise


@contextmanager
def _released_on_failure(folder: Path | None) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if folder is not None:
            run_folder.release(folder)
        raise


def _train(
    module: nn.Module | None,
    dataset: Dataset,
    split: Split,
    settings: RunSettings,
    folder: Path | None,
    resume: bool,
    device: torch.device,
    progress: Progress,
    should_stop: Callable[[], bool] | None,
    on_start: Callable[[TrainingSummary], None] | None,
    *,
    group: Group,
) -> Run:
    config, deformation = settings.config, settings.deformation
    classes, shape = split.classes, split.image_shape
    deformation.validate_classes(len(classes))
    path = None if folder is None else run_folder.checkpoint_path(folder)
    resumed = resume and path is not None and path.exists()
    built = group.together(lambda: _network(module, settings, shape, len(classes), resumed=resumed))
    group.require_same({"the network": _tensors(built)})
    group.broadcast_(built.state_dict().values())  # a module of the caller may have other random weights on each rank
    normalization = group.on_first(lambda: fit_normalization(split.images, config, deformation, built, progress))
    images, held_out = split.images, split.held_out_images
    if isinstance(normalization, Whitening):
        # Once for all epochs; pixels of the other normalizations are converted a batch at a time, to save memory.
        images, held_out = normalization.apply(images[:]), normalization.apply(held_out[:])
    built.to(device)
    inputs = normalization.standardize(deformation.preprocess(scale_pixels(images[:2])))
    group.together(lambda: check_network(built, inputs.to(device), len(classes), config.precision))
    for layer in models.fitted_layers(built) if config.weights is None else ():
        first = deformation.preprocess(scale_pixels(images[: layer.fitted_images]))
        layer.fit(normalization.standardize(first).to(device))
        group.broadcast_([layer.weight])  # the sign of a filter may differ between machines
    gradients = GradientSum(group, should_stop)
    checkpointer = Checkpointer(path, config, gradients.should_stop, saves=group.first)
    if folder is not None:
        group.on_first(lambda: run_folder.claim(folder, settings, split.digest, resume=resume))
    with _released_on_failure(folder if group.first else None), frozen(built) if config.freeze else nullcontext():
        # before the optimizer, whose first use imports torch's compiler
        stored = group.together(lambda: checkpointer.read(built))
        state = init_state(built, config, tied=config.tied > 0)
        group.together(lambda: checkpointer.restore(state, shape, stored))
        group.require_same({"the checkpoint": f"of step {state.step}"})  # the folder is shared
        if on_start is not None:
            on_start(TrainingSummary.of(settings, dataset, split, normalization, built))
        run_epochs(
            state,
            config,
            deformation,
            images,
            split.labels,
            (held_out, split.held_out_labels),
            standardize=normalization.standardize,
            after_step=checkpointer,
            progress=progress,
            prefetch=True if isinstance(images, FileImages | DatasetImages) else None,
            device=device,
            gradients=gradients,
        )
    if state.averaged is not None:
        state.network.load_state_dict(state.averaged.module.state_dict())
    run = Run(
        network_name=settings.network,
        data=settings.data,
        deformation=deformation,
        config=config,
        network=state.network.cpu().eval(),
        normalization=normalization,
        classes=classes,
        image_shape=shape,
        history=tuple(state.history),
        versions=_versions(),
        folder=folder,
    )
    if folder is not None:
        group.on_first(lambda: save(run, folder, split.digest))
    return run


def _tensors(network: nn.Module) -> str:
    """Describe the tensors of a network, so that ranks with different ones notice it."""
    tensors = [f"{name} {str(t.dtype)[6:]} {list(t.shape)}" for name, t in network.state_dict().items()]
    digest = hashlib.blake2b("\n".join(tensors).encode(), digest_size=4).hexdigest()
    return f"{type(network).__name__} of {len(tensors)} tensors (digest {digest})"


def _network(
    module: nn.Module | None, settings: RunSettings, shape: tuple[int, int, int], classes: int, *, resumed: bool
) -> nn.Module:
    """Return the network with its initial weights, unless a checkpoint has those of an earlier training."""
    if module is None:
        module = build_network(settings, shape, classes, to_train=True)
    if settings.config.weights is not None and not resumed:
        load_weights(module, Path(settings.config.weights))
    return module


def _versions() -> dict[str, str]:
    description = provenance.describe()
    packages = description.pop("versions")
    return {name: str(value) for name, value in (packages | description).items() if value is not None}
