"""Ranks that torchrun started agree on their job before the first of them begins, so that they fail together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os.path import exists, getsize
from pathlib import Path
from typing import Any

from apac.distributed.claims import Claims
from apac.distributed.file_list import first_image
from apac.distributed.job import CLAIMS, FILE, check_folder, check_restart, described, read_job
from apac.distributed.ranks.group import Group


def check_agreement(
    group: Group,
    settings: Mapping[str, Any],
    sources: Sequence[str],
    out: Path,
    *,
    part_size: int | None,
    is_restart: bool = False,
) -> None:
    """Raise the same error on all ranks if they differ in what decides the result, or one of them cannot take part.

    Files are not listed: of the data, the first file and its size are compared, and what a stored job tells.
    """
    if group.size == 1:
        return
    first = group.together(lambda: _first_file(sources))
    group.require_same({**described(settings, sources, part_size), "the first file": first})
    if is_restart:
        group.together(lambda: check_restart(out, sources))
    group.together(lambda: _check_folder(group.rank, settings, sources, out, part_size))


def _first_file(sources: Sequence[str]) -> str | None:
    """Return the first file and its size. InputError is raised if this rank does not have the sources."""
    first = first_image(sources)
    if first is None or not exists(first):
        return first
    return f"{first} of {getsize(first):,} bytes"


def _check_folder(
    rank: int, settings: Mapping[str, Any], sources: Sequence[str], out: Path, part_size: int | None
) -> None:
    """Raise an error if the folder has another job, or if this rank cannot write to it."""
    check_folder(out)
    if (out / FILE).exists():
        job = read_job(out)
        job.check_settings(settings, sources, part_size)
        job.check_data()
    with Claims(out / CLAIMS) as claims:
        claims.take(f"rank {rank}")
