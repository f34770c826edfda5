"""Join the parts of a job to one file."""

from __future__ import annotations

from pathlib import Path

from apac import limits
from apac.distributed.job import REMEDY, Job, read_job
from apac.distributed.tables import copy_rows, header_of
from apac.errors import InputError, StorageError
from apac.runs.storage import write_atomically
from apac.validation import shortened

MAX_NAMED = 5  # missing parts in an error message


def merge_parts(folder: Path, csv: Path) -> Job:
    """Write the decisions of all files of a job to one CSV file, in the order of its list.

    Raises InputError if parts are missing or damaged; the message names them.
    """
    job = read_job(folder)
    if len(job.parts.complete()) < job.parts.count:
        raise _incomplete(folder, job)

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            file.write(header_of(job.classes))
            for part in range(job.parts.count):
                content = job.parts.open(part)
                if content is None:
                    raise _incomplete(folder, job)
                try:
                    with content:
                        copy_rows(content, file, job.classes, job.format, job.files.files_of(part))
                except InputError:
                    raise
                except Exception as error:  # pyarrow raises many kinds of exceptions for damaged files
                    raise StorageError(f"{job.parts.path(part)} is damaged; {REMEDY}.") from error

    write_atomically(csv, write)
    return job


def _incomplete(folder: Path, job: Job) -> InputError:
    """Return an error that names the parts which are missing or damaged; only for this, all stored ones are read."""
    stored = job.parts.complete()
    states = {part: job.parts.state(part) if part in stored else "missing" for part in range(job.parts.count)}
    absent = {part: state for part, state in states.items() if state != "complete"}
    if not absent:
        return InputError(f"{folder} changed while its parts were joined; repeat it when all processes have ended.")
    named = ", ".join(f"part {part} ({state})" for part, state in list(absent.items())[:MAX_NAMED])
    more = f" and {len(absent) - MAX_NAMED:,} others" if len(absent) > MAX_NAMED else ""
    first = shortened(job.files.read(next(iter(absent)))[0], limits.QUOTED_TEXT)
    return InputError(
        f"{folder} is not complete: of {job.parts.count:,} parts, {named}{more} must be decided, from the file "
        f"{first} on; repeat the command that started the job."
    )
