"""apac train"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apac.cli.errors import handle_errors
from apac.cli.options import (
    DeformationOption,
    Fit,
    Overwrite,
    Precision,
    Resume,
    Size,
    deformation_of,
    search_current_folder,
)
from apac.cli.ranks import continues, note_start, on_first_rank, process_group
from apac.cli.signals import stop_on_signal
from apac.cli.terminal import show_progress
from apac.cli.train_summary import print_summary
from apac.errors import InputError, Interrupted

if TYPE_CHECKING:  # they import torch, which is slow
    from apac.deform.base import Deformation
    from apac.runs.summary import TrainingSummary
    from apac.training.config import TrainConfig

# default network by data set; resnet for folders
NETWORKS = {"mnist-5k": "mnist-cnn", "mnist": "mnist-cnn", "cifar10": "cifar10-cnn"}


@handle_errors
def train(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="The folder for the run.", show_default=False)],
    data: Annotated[
        str | None, typer.Option(help="mnist-5k, mnist, cifar10, or a folder.", show_default="mnist-5k")
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|timm:NAME|module:function",
            help="resnet, mnist-cnn, mnist-mlp, cifar10-cnn, cifar10-mlp or cifar10-modern; a network of timm; or "
            "a function that builds a module from (image_shape, classes).",
            show_default="the CNN for the data; resnet for a folder",
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="A safetensors file with initial weights. The last layer may have other classes."),
    ] = None,
    freeze: Annotated[bool, typer.Option("--freeze", help="Train the last layer only.")] = False,
    deformation: DeformationOption = None,
    plain: Annotated[bool, typer.Option("--plain", help="Train on the original data, without deformation.")] = False,
    epochs: Annotated[
        int | None,
        typer.Option(help="One epoch has as many virtual samples as images.", show_default="100"),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Virtual samples per step.", show_default="100")] = None,
    replacement: Annotated[
        bool | None,
        typer.Option(
            help="Draw images with replacement, as in the paper, or none again before all others are drawn.",
            show_default="replacement",
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="The initial learning rate.",
            show_default="the paper's; resnet 0.05, cifar10-modern 0.06, muon 0.02, adamw 0.001, others 0.005",
        ),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="exponential (factor 0.9993 per epoch) or cosine.",
            show_default="exponential; cosine for resnet, cifar10-modern and timm",
        ),
    ] = None,
    warmup: Annotated[
        float | None,
        typer.Option(
            help="Fraction of the steps used for linear warm-up.",
            show_default="0; 0.1 for resnet, cifar10-modern and timm",
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="sgd, muon or adamw.", show_default="sgd; muon for resnet and cifar10-modern, adamw for timm"
        ),
    ] = None,
    tied: Annotated[
        float | None,
        typer.Option(help="Initial fraction of epochs in which an MLP shares weights like a CNN.", show_default="0"),
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="Momentum of the optimizer.", show_default="0.9")] = None,
    weight_decay: Annotated[
        float | None,
        typer.Option(
            help="L2 penalty on the weights; for muon and adamw their decay per step, in units of the learning rate.",
            show_default="the paper's; resnet 0.01, cifar10-modern 0.06, muon and adamw 0.05, others 5e-4",
        ),
    ] = None,
    label_smoothing: Annotated[
        float | None,
        typer.Option(help="Share of the target probability that is spread over all classes.", show_default="0"),
    ] = None,
    ema_decay: Annotated[
        float | None,
        typer.Option(help="Decay of the moving average of the weights, per step; 0 disables it.", show_default="0"),
    ] = None,
    precision: Precision = None,
    validation_fraction: Annotated[
        float | None, typer.Option(help="Fraction of the images to hold out.", show_default="0.1")
    ] = None,
    normalization: Annotated[
        str | None,
        typer.Option(
            help="scaling (pixels to 0 ... 1), standardization (also per channel, after the deformation) or zca "
            "(whitening before it).",
            show_default="the paper's; standardization otherwise",
        ),
    ] = None,
    size: Size = None,
    fit: Fit = None,
    device: Annotated[
        str | None,
        typer.Option(help="cpu, cuda, mps, ...: where the network is trained.", show_default="an accelerator, or cpu"),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(help="A folder for the decoded pixels of an image folder, which then need not fit into memory."),
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Decode the files of an image folder for every batch, without a cache.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of the random generators.", show_default="0")] = None,
    on_unreadable: Annotated[
        str | None, typer.Option(help="refuse or skip unreadable image files.", show_default="refuse")
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Train a network on randomly deformed images.

    Example:  apac train --data mnist --network mnist-cnn --epochs 3 --out runs/cnn

    Example:  apac train --data photos --size 96 --out runs/photos

    A folder has one subfolder of images per class. About a fifth of each class is held out for apac evaluate, unless
    the folder is divided into train and test.

    Ctrl-C saves a checkpoint:  apac train --resume --out runs/cnn  continues with the same result.

    On several ranks:  torchrun --nproc-per-node 2 -m apac train --data mnist --out runs/cnn
    """
    from apac.distributed.ranks.group import agreed
    from apac.inference.memory import keep_all_freed_blocks
    from apac.models.import_path import is_import_path
    from apac.runs import train as training

    options: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch_size,
        "replacement": replacement,
        "learning_rate": learning_rate,
        "schedule": schedule,
        "warmup": warmup,
        "optimizer": optimizer,
        "tied": tied,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "label_smoothing": label_smoothing,
        "ema_decay": ema_decay,
        "precision": precision,
        "validation_fraction": validation_fraction,
        "normalization": normalization,
        "size": size,
        "fit": fit,
        "weights": None if weights is None else str(weights),
        "freeze": freeze or None,
        "seed": seed,
        "on_unreadable": on_unreadable,
    }
    chosen = {name: value for name, value in options.items() if value is not None}
    command = _with_imports(context, network, deformation)
    if network is not None and is_import_path(network):
        search_current_folder()
    u = _deformation(deformation, plain=plain)

    def started(summary: TrainingSummary) -> None:
        note_start()
        print_summary(summary)

    with process_group(device) as group, show_progress() as progress, stop_on_signal() as should_stop:
        choose = _resumed if resume else _new
        network, data, u, config = group.together(lambda: choose(out, network, data, u, chosen))
        again = group.size > 1 and (continues(group) or group.on_first(lambda: _is_incomplete(out, overwrite)))
        keep_all_freed_blocks()
        try:
            run = training.train(
                network,
                data,
                u,
                config=config,
                out=out,
                resume=resume or again,
                overwrite=overwrite and not again,
                device=device,
                cache=cache,
                stream=stream,
                progress=on_first_rank(progress),
                should_stop=should_stop,
                on_start=started if group.first else None,
            )
        except Interrupted as error:
            stopped = str(error).partition(";")[0]
            command = f"{command} train --resume --out {shlex.quote(str(out))}"
            raise agreed(Interrupted(f"{stopped}, and a checkpoint is saved; resume with: {command}")) from None
    if not group.first:
        return
    last, epochs = run.history[-1], len(run.history)
    note = "" if last.validation_error is None else f", plain error on held-out images {last.validation_error:.2%}"
    print(f"{out}: {network}, {epochs} epoch{'s' * (epochs > 1)} in {last.seconds:.0f} s, loss {last.loss:.4f}{note}")
    print(f"next: {command} evaluate {shlex.quote(str(out))}")


def _is_incomplete(out: Path, overwrite: bool) -> bool:
    """Return whether ranks continue the training in the folder: torchrun starts them again with the same command."""
    from apac.runs.folder import holds_run, is_complete

    return not overwrite and holds_run(out) and not is_complete(out)


TrainArguments = tuple[str, str, "Deformation | None", "TrainConfig"]


def _with_imports(context: typer.Context, *paths: str | None) -> str:
    """Return "apac", with the --import options that a later command needs: those of this one, and of import paths."""
    from apac.models.import_path import is_import_path

    root = context.find_root().params.get("modules") or []
    modules = [
        *root,
        *(
            path.partition(":")[0]
            for path in paths
            if path is not None and is_import_path(path) and not path.endswith(".json")
        ),
    ]
    return " ".join(["apac", *(f"--import {shlex.quote(module)}" for module in dict.fromkeys(modules))])


def _deformation(deformation: str | None, *, plain: bool) -> Deformation | None:
    """Return the deformation of the options, or None for the default."""
    from apac.deform.compose import Compose

    if plain and deformation is not None:
        raise InputError("--plain trains without deformation; choose it or --deformation.")
    if plain:
        return Compose()
    return None if deformation is None else deformation_of(deformation)


def _new(
    out: Path, network: str | None, data: str | None, deformation: Deformation | None, chosen: dict[str, Any]
) -> TrainArguments:
    from apac.training.config import TrainConfig

    data = data or "mnist-5k"
    return network or NETWORKS.get(data, "resnet"), data, deformation, TrainConfig(**chosen)


def _resumed(
    out: Path, network: str | None, data: str | None, deformation: Deformation | None, chosen: dict[str, Any]
) -> TrainArguments:
    """Return the stored settings, updated with the given options."""
    from dataclasses import replace

    from apac.models.import_path import find_builder, is_import_path
    from apac.runs.folder import read_settings

    stored = read_settings(out)
    if stored.network is None or stored.data is None:
        raise InputError(f"the run in {out} was trained from Python on a module or data in memory; resume it there.")
    if network is None and is_import_path(stored.network):
        find_builder(stored.network, import_it=False)  # a run folder must not decide which code is imported
    return (
        network or stored.network,
        data or stored.data,
        stored.deformation if deformation is None else deformation,
        replace(stored.config, **chosen),
    )
