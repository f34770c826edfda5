"""Join the parts of a job to one file."""

from __future__ import annotations

from pathlib import Path

from apac.distributed.job import Job, read_job
from apac.distributed.tables import csv_rows, header_of
from apac.errors import InputError
from apac.runs.storage import write_atomically

MAX_NAMED = 5  # missing parts in an error message


def merge_parts(folder: Path, csv: Path) -> Job:
    """Write the decisions of all files of a job to one CSV file, in the order of its list.

    Raises:
        InputError: if parts are missing or damaged; the message names them.
    """
    job = read_job(folder)
    states = {part: job.parts.state(part) for part in range(job.files.parts)}
    absent = {part: state for part, state in states.items() if state != "complete"}
    if absent:
        named = ", ".join(f"part {part} ({state})" for part, state in list(absent.items())[:MAX_NAMED])
        more = f" and {len(absent) - MAX_NAMED:,} others" if len(absent) > MAX_NAMED else ""
        first = job.files.read(next(iter(absent)))[0]
        raise InputError(
            f"{folder} is not complete: of {job.files.parts:,} parts, {named}{more} must be decided, from the file "
            f"{first} on; repeat the command that started the job."
        )

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            file.write(header_of(job.classes))
            for part in range(job.files.parts):
                file.write(csv_rows(job.parts.path(part), job.classes, job.format))

    write_atomically(csv, write)
    return job
