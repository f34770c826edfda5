"""apac bench"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apac.cli.errors import handle_errors
from apac.cli.terminal import print_table, show_progress
from apac.errors import InputError


@handle_errors
def bench(
    only: Annotated[
        str, typer.Option(help="Benchmarks to run, separated by commas.")
    ] = "deform,decide,pipelines,train,ranks,process,serve",
    rounds: Annotated[int, typer.Option(help="Measurements per contestant; the best one counts.")] = 5,
    out: Annotated[Path, typer.Option(help="File for the results.")] = Path("bench.json"),
) -> None:
    """Benchmark the speed, compared with other libraries and with the peak of the machine.

    Example:  apac bench --only deform --out deform.json

    Other libraries are measured if they are installed (the extra "bench"). Leave the machine idle otherwise.
    """
    from apac.bench.result import bench as measure
    from apac.bench.result import tables, to_json
    from apac.runs.storage import write_json

    if not out.parent.is_dir():
        raise InputError(f"the folder {out.parent} does not exist; create it, or choose another --out.")
    with show_progress() as progress:
        entries = measure([part.strip() for part in only.split(",")], rounds, progress=progress)
    for table in tables(entries):
        print_table(table)
    write_json(out, to_json(entries, rounds))
    print(f"wrote {out}")
