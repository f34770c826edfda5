"""apac classify"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from apac.cli.errors import handle_errors, print_error
from apac.cli.options import Error, Limit, RunFolder, Seed, certified
from apac.cli.terminal import decision_records, print_record, records_to_csv, show_progress
from apac.errors import InputError


@handle_errors
def classify(
    run: RunFolder,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files.", show_default=False)],
    error: Error = None,
    limit: Limit = None,
    passes: Annotated[
        int | None, typer.Option(help="A fixed number of passes instead of the certified rule.", show_default=False)
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Also write the decisions to this file.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the decisions as JSON.")] = False,
    seed: Seed = 0,
) -> None:
    """Classify image files by APAC, with as many passes as a certified decision needs.

    Example:  apac classify runs/cnn digit.png

    Example:  apac classify runs/photos *.jpg --csv decisions.csv

    Images are resized, centered and inverted to match the training data, and the output lists the conversions.
    """
    import torch

    from apac.classify.rules.base import Rule
    from apac.classify.rules.fixed import FixedPasses
    from apac.data.image_file import read_image
    from apac.runs.run import load
    from apac.runs.storage import write_bytes

    if passes is not None and (error, limit) != (None, None):
        raise InputError(
            "--passes fixes the number of passes, --error and --limit belong to the certified rule; choose one."
        )
    rule: Rule | None = None if passes is None else FixedPasses(passes)
    if (error, limit) != (None, None):
        rule = certified(error, limit)
    loaded = load(run)
    read, failed = [], False
    for path in images:
        try:
            read.append((path, *read_image(path, loaded.image_shape)))
        except InputError as unreadable:
            print_error(str(unreadable))
            failed = True
    records: list[dict[str, Any]] = []
    if read:
        pixels = loaded.normalize(torch.stack([image for _, image, _ in read]))
        with show_progress() as progress:
            decision = loaded.classifier(rule, seed=seed).decide(pixels, progress=progress)
        converted = [(path, notes) for path, _, notes in read]
        records = decision_records(converted, decision, loaded.classes)
        failed = failed or "nan" in decision.stopped
    if as_json:
        print(json.dumps(records, indent=2))
    else:
        for record in records:
            print_record(record)
    if csv is not None:
        write_bytes(csv, records_to_csv(records).encode(errors="surrogateescape"))
    if failed:
        raise typer.Exit(2)
