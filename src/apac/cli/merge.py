"""apac merge"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apac.cli.errors import handle_errors


@handle_errors
def merge(
    decisions: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder of apac classify --out.", show_default=False)
    ],
    csv: Annotated[Path, typer.Option("--csv", help="The file to write.", show_default=False)],
) -> None:
    """Join the parts that apac classify --out has written, after checking that all of them are there and intact.

    Example:  apac merge decisions --csv decisions.csv

    The file has one line per image, in the order of the list of files. It does not depend on how many processes decided
    the images, nor on interruptions.
    """
    from apac.distributed.merge import merge_parts
    from apac.runs.storage import check_replaceable

    check_replaceable(csv)  # before the work
    job = merge_parts(decisions, csv)
    print(f"{csv}: the decisions of {job.files.count:,} files.")
