"""apac classify"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

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
    from apac.classify.rules.base import Rule
    from apac.classify.rules.fixed import FixedPasses
    from apac.runs.run import load
    from apac.runs.storage import write_bytes

    if passes is not None and (error, limit) != (None, None):
        raise InputError(
            "--passes fixes the number of passes, --error and --limit belong to the certified rule; choose one."
        )
    rule: Rule | None = None if passes is None else FixedPasses(passes)
    if (error, limit) != (None, None):
        rule = certified(error, limit)
    with show_progress() as progress:
        classified = load(run).classify(images, rule, seed=seed, progress=progress)
    for reason in classified.unreadable.values():
        print_error(reason)
    records = decision_records(classified)
    if as_json:
        print(json.dumps(records, indent=2))
    else:
        for record in records:
            print_record(record)
    if csv is not None:
        write_bytes(csv, records_to_csv(records).encode(errors="surrogateescape"))
    if classified.unreadable or "nan" in classified.decision.stopped:
        raise typer.Exit(2)
