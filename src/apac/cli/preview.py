"""apac preview"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from apac.cli.errors import handle_errors
from apac.cli.options import DeformationOption, Fit, Seed, Size, deformation_of
from apac.cli.terminal import show_progress
from apac.errors import InputError


@handle_errors
def preview(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN|FOLDER|IMAGE...",
            help="A run, a folder of images by class, or image files; files after a run are prepared as the run does.",
            show_default=False,
        ),
    ],
    deformation: DeformationOption = None,
    size: Size = None,
    fit: Fit = None,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(help="The PNG file to write.")] = Path("preview.png"),
) -> None:
    """Draw what a deformation does to your images, before or after training.

    Example:  apac preview photos

    Example:  apac preview digits --deformation mnist --out digits.png

    Each row has an image and eight virtual samples. If you cannot recognize a virtual sample, or its class has changed
    (a mirrored digit), choose another deformation.
    """
    from apac.runs.presets import describe
    from apac.runs.preview import choose_images
    from apac.runs.storage import write_bytes
    from apac.training.config import TrainConfig

    if out.suffix.lower() != ".png":
        raise InputError(f"--out takes the name of a PNG file, such as preview.png, got {out}.")
    u = None if deformation is None else deformation_of(deformation)
    given: dict[str, Any] = {"size": size, "fit": fit}
    TrainConfig(**{name: value for name, value in given.items() if value is not None})  # validates them
    with show_progress() as progress:
        shown = choose_images(sources, u, **given, progress=progress)
    from apac.reporting.figures.images import deformed_samples  # once there is something to draw: it imports matplotlib

    text = describe(shown.deformation)
    title = "\n".join(textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False))
    write_bytes(
        out, deformed_samples(shown.images, shown.labels, shown.deformation, names=shown.names, title=title, seed=seed)
    )
    channels, height, width = shown.images.shape[1:]
    print(f"{out}: {len(shown.images)} images of {channels} x {height} x {width} pixels; deformation {text}")
