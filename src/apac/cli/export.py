"""apac export"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apac.cli.errors import handle_errors
from apac.cli.options import RunFolder


@handle_errors
def export(
    run: RunFolder,
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The .onnx file to write.", show_default=False)],
    whitened: Annotated[
        bool,
        typer.Option("--whitened", help="For a run with ZCA: let the graph start after the whitening."),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Export a run as an ONNX file: preprocessing and network in one graph, for any number of images.

    Example:  apac export runs/photos model.onnx

    Example:  apac export cifar10-cnn model.onnx --whitened

    The graph takes float32 images (n, C, H, W) of pixels / 255 and returns logits, the plain prediction. The class
    names, the image shape and the deformation are in its metadata. apac.from_onnx loads the file for decisions by APAC;
    a run with ZCA deforms whitened images, so export it with --whitened for that.
    """
    from apac.runs.run import load

    loaded = load(run)
    written = loaded.export(path, whitened=whitened, overwrite=overwrite)
    shape = ", ".join(map(str, loaded.image_shape))
    print(f"wrote {written}: images (n, {shape}) to logits (n, {len(loaded.classes)})")
    if loaded.choice is not None:
        print("What apac tune has chosen is not part of the graph: in Python, run.choice.apply(classifier) adds it.")
