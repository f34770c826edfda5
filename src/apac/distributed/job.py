"""The job of an output folder: what decides its result, so that processes only add to results of the same job."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from apac import limits
from apac.distributed.claims import Claims
from apac.distributed.file_list import NAMES, OFFSETS, STANDARD_INPUT, FileList, find_images, store_list
from apac.distributed.parts import Parts
from apac.distributed.settings import absolute_source, described, first_difference
from apac.distributed.tables import Format, columns_of, header_of
from apac.errors import InputError, StorageError
from apac.runs.storage import read_json, write_json, write_text
from apac.validation import quoted, shortened, validate_class_names

FILE, CLAIMS, LISTING = "job.json", "claims", "list"
READING = ".reading"  # marks a folder while the standard input is read, which cannot be done twice
FORMAT = 1
REMEDY = "remove the folder and start again"
POLL, MAX_POLL = 0.2, 5.0  # seconds between two polls, while another process lists the files
MAX_IDLE = 600.0  # seconds to wait for the first rank, while it does not list
PROBED = 1000  # files at the start of a list, among which one should exist
Probe = tuple[str, int]  # a file and its size


@dataclass(frozen=True)
class Job:
    """What determines the result of a job, and its list of files."""

    settings: dict[str, Any]
    sources: tuple[str, ...]  # absolute
    working_folder: str | None  # to which paths of the list are relative; None if they are absolute
    files: FileList
    probe: Probe | None  # a file of the list, which every machine must see

    @property
    def format(self) -> Format:
        return self.settings["format"]  # type: ignore[no-any-return]

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.settings["classes"])

    @property
    def parts(self) -> Parts:
        return Parts(self.files.folder / "parts", f".{self.format}", self.files.parts, self._max_bytes)

    def _max_bytes(self, part: int) -> int:
        row = limits.ROW_BYTES + limits.PROBABILITY_BYTES * len(self.classes)
        return row * self.files.files_of(part) + self._column_bytes

    @cached_property
    def _column_bytes(self) -> int:
        names = limits.COLUMN_NAMES * len(header_of(self.classes))
        return names + limits.COLUMN_BYTES * len(columns_of(self.classes))

    def check_settings(self, settings: Mapping[str, Any], sources: Sequence[str], part_size: int | None) -> None:
        """Raise InputError, which names the first difference, if other settings than these determine the result."""
        theirs = described(self.settings, self.sources, self.files.part_size)
        ours = described(settings, sources, part_size or self.files.part_size)
        if self.working_folder is not None:
            ours["working folder"], theirs["working folder"] = os.getcwd(), self.working_folder
        if difference := first_difference(theirs, ours):
            raise _another(self.files.folder, difference)

    def check_data(self) -> None:
        """Raise InputError if this machine does not see the files."""
        check_probe(self.probe)


def probe_of(paths: Iterable[str]) -> Probe | None:
    """Return the first of the files that exists, with its size."""
    return next(((path, os.stat(path).st_size) for path in paths if os.path.exists(path)), None)


def check_probe(probe: Probe | None) -> None:
    """Raise InputError if this machine does not see a file as another one does."""
    if probe is None:
        return
    path, size = probe
    try:
        found = os.stat(path).st_size
    except (OSError, ValueError) as error:  # ValueError for a text that is no path
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"this machine does not have the data of the job: {shortened(path, limits.QUOTED_TEXT)} cannot be read "
            f"({reason}); make the same files available on every machine."
        ) from error
    if found != size:
        raise InputError(
            f"the data differ from those of the job: {shortened(path, limits.QUOTED_TEXT)} has {found:,} bytes, not "
            f"{quoted(size)}."
        )


def check_folder(out: Path) -> None:
    """Raise InputError if a folder holds anything but a job. Nothing is changed."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; the decisions need a folder.")
    own = (".", NAMES, OFFSETS, CLAIMS)  # a job that was interrupted before its description was written has these
    others = [child.name for child in out.iterdir() if not child.name.startswith(own)] if out.is_dir() else []
    if others and not (out / FILE).exists():
        raise InputError(f"{out} has other files, such as {others[0]}, and no {FILE}; choose an empty or a new folder.")


def open_job(
    out: Path,
    claims: Claims,
    settings: dict[str, Any],
    sources: Sequence[str],
    *,
    part_size: int | None = None,
    is_first: bool = True,
    is_restart: bool = False,
    wait: Callable[[float], None] = time.sleep,
) -> Job:
    """Return the job in a folder, which this process creates unless another one does.

    The first rank also compares the files with those of a job that it finds; the other ranks do not, because listing
    many files is slow and the list is stored. After a restart the standard input is lost, and the stored list is taken.

    Raises InputError if the folder has another job, with the first difference in the message, or if the first rank does
    not store what it reads from the standard input.
    """
    if is_restart:
        check_restart(out, sources)
    must_compare = is_first and (out / FILE).exists() and not (is_restart and STANDARD_INPUT in sources)
    may_list = is_first or STANDARD_INPUT not in sources
    pause, idle = POLL, 0.0
    while not (out / FILE).exists():
        if may_list and claims.take(LISTING):
            try:
                if not (out / FILE).exists():
                    with _marked(out, sources):
                        return _create(out, settings, sources, part_size)
            finally:
                claims.release(LISTING)
        if may_list or claims.is_taken(LISTING):
            idle = 0.0
        elif idle >= MAX_IDLE:
            raise InputError(
                f"the first rank has not stored the list of files from the standard input in {out} within "
                f"{MAX_IDLE:.0f} s; see its own message, and start all ranks again."
            )
        wait(pause)
        pause, idle = min(2 * pause, MAX_POLL), idle + pause
    job = _read(out)
    job.check_settings(settings, sources, part_size)
    if must_compare:
        with _marked(out, sources):
            if change := job.files.first_difference(find_images(sources)):
                raise _another(out, f"in its list, {change}")
    job.check_data()
    return job


def check_restart(out: Path, sources: Sequence[str]) -> None:
    """Raise InputError if a restarted rank needs the standard input, of which an earlier attempt has read a part."""
    if STANDARD_INPUT in sources and (not (out / FILE).exists() or (out / READING).exists()):
        raise InputError(
            "a rank was restarted before the list of files from the standard input was stored, and what it had read "
            "is lost; write the list to a file and use @list instead of -."
        )


def read_job(out: Path) -> Job:
    """Return the job in a folder, or raise InputError if there is none."""
    if not (out / FILE).exists():
        raise InputError(f"{out} has no decisions (it has no {FILE}); give the folder of a job.")
    return _read(out)


@contextmanager
def _marked(out: Path, sources: Sequence[str]) -> Iterator[None]:
    """Mark the folder during the block if the standard input is read. The mark stays if the block does not end.

    A list that is refused leaves no mark in a folder without a job, in which no restart continues anyway.
    """
    if STANDARD_INPUT not in sources:
        yield
        return
    write_text(out / READING, "")
    try:
        yield
    except InputError:
        if not (out / FILE).exists():
            (out / READING).unlink(missing_ok=True)
        raise
    (out / READING).unlink(missing_ok=True)


def _create(
    out: Path,
    settings: dict[str, Any],
    sources: Sequence[str],
    part_size: int | None,
) -> Job:
    relative = False
    absolute = tuple(map(absolute_source, sources))

    def listed() -> Iterator[str]:
        nonlocal relative
        for path in find_images(sources):
            relative = relative or not os.path.isabs(path)
            yield path

    files = store_list(out, listed(), part_size)
    probe = probe_of(islice(files, PROBED))
    working_folder = os.getcwd() if relative else None
    job = Job(settings, absolute, working_folder, files, probe)
    write_json(
        out / FILE,
        {
            "job": FORMAT,
            "settings": settings,
            "sources": list(absolute),
            "working folder": working_folder,
            "files": files.count,
            "list": files.digest,
            "part size": files.part_size,
            "probe": probe,
        },
    )
    return job


def _read(out: Path) -> Job:
    payload = read_json(out / FILE, REMEDY)
    if not isinstance(payload, dict) or payload.get("job") != FORMAT:
        raise InputError(f"{out / FILE} is not a job that this version of apac reads; choose another folder.")
    try:
        settings, probe = payload["settings"], payload["probe"]
        files = FileList(out, payload["files"], payload["list"], payload["part size"])
        job = Job(settings, tuple(payload["sources"]), payload["working folder"], files, probe and tuple(probe))
        validate_class_names(settings["classes"])
        typed = (
            settings["format"] in get_args(Format)
            and all(isinstance(text, str) for text in (*job.sources, files.digest))
            and isinstance(job.working_folder, str | None)
            and (probe is None or [*map(type, probe)] == [str, int])
        )
        if not (typed and files.is_consistent):
            raise ValueError("the job is damaged")
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{out / FILE} is damaged; {REMEDY}.") from error
    return job


def _another(out: Path, difference: str) -> InputError:
    return InputError(f"{out} has another job: {difference}; repeat the command of that job, or choose another folder.")
