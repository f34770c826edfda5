"""apac train"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from apac.cli.errors import handle_errors
from apac.cli.options import Overwrite, Resume
from apac.cli.terminal import show_progress


@handle_errors
def train(
    out: Annotated[Path, typer.Option(help="The folder for the run.", show_default=False)],
    data: Annotated[
        str | None, typer.Option(help="mnist-5k, mnist, cifar10, or a folder.", show_default="mnist-5k")
    ] = None,
    model: Annotated[str | None, typer.Option(help="cnn or mlp: the paper's for the data.", show_default="cnn")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Train on the original data, without deformation.")] = False,
    epochs: Annotated[
        int | None, typer.Option(help="How often as many samples as the set has.", show_default="100")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Virtual samples a step.", show_default="100")] = None,
    rate: Annotated[
        float | None, typer.Option(help="Initial learning rate.", show_default="the paper's; 0.005 for a folder")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option(help="paper (times 0.9993 an epoch) or cosine.", show_default="paper")
    ] = None,
    warmup: Annotated[
        float | None, typer.Option(help="Part of the training in which the rate grows.", show_default="0")
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd or muon.", show_default="sgd")] = None,
    tied: Annotated[
        float | None,
        typer.Option(
            help="Part of the training in which an mlp's weights are tied as a convolution's.", show_default="0"
        ),
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="Of the steps.", show_default="0.9")] = None,
    l2: Annotated[
        float | None, typer.Option(help="L2 factor on the weights.", show_default="the paper's; 5e-4 for a folder")
    ] = None,
    average: Annotated[
        float | None, typer.Option(help="Decay a step of averaged weights; 0: none.", show_default="0")
    ] = None,
    validation: Annotated[
        float | None, typer.Option(help="Part of the images to hold out.", show_default="0.1")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Decides every random number.", show_default="0")] = None,
    corrupt: Annotated[
        str | None, typer.Option(help="refuse or skip files that cannot be read.", show_default="refuse")
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Train a network with on-line deformation.

    Example:  apac train --data mnist --model cnn --epochs 3 --out runs/cnn

    Example:  apac train --data photos --schedule cosine --out runs/photos

    A folder has a sub-folder of images for each class; a fifth of each is kept for apac evaluate, unless the folder is
    divided into train and test.

    Ctrl-C keeps a checkpoint:  apac train --resume --out runs/cnn  goes on as if nothing had happened.
    """
    from dataclasses import replace

    from apac.deform.compose import Compose
    from apac.runs import run as runs
    from apac.runs.folder import read_config
    from apac.training.config import TrainConfig

    options = {
        "data": data,
        "model": model,
        "epochs": epochs,
        "batch": batch,
        "rate": rate,
        "schedule": schedule,
        "warmup": warmup,
        "optimizer": optimizer,
        "tied": tied,
        "momentum": momentum,
        "l2": l2,
        "average": average,
        "validation": validation,
        "seed": seed,
        "corrupt": corrupt,
        "deformation": Compose() if plain else None,
    }
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    config = replace(read_config(out), **given) if resume else TrainConfig(**given)
    with show_progress() as progress:
        run = runs.train(config, out, resume=resume, overwrite=overwrite, progress=progress)
    last = run.history[-1]
    held = "" if last.validation_error is None else f", plain error on held-out images {last.validation_error:.2%}"
    print(f"{out}: {config.network}, {last.epoch} epochs in {last.seconds:.0f} s, loss {last.loss:.4f}{held}")
    print(f"next: apac evaluate {shlex.quote(str(out))}")
