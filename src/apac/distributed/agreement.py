"""Ranks that torchrun started agree on their job before the first of them begins, so that they fail together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apac.distributed.claims import Claims
from apac.distributed.file_list import any_image, check_sources
from apac.distributed.job import (
    CLAIMS,
    FILE,
    Probe,
    check_folder,
    check_probe,
    check_restart,
    probe_of,
    read_job,
)
from apac.distributed.ranks.group import Group
from apac.distributed.settings import described


def check_agreement(
    group: Group,
    settings: Mapping[str, Any],
    sources: Sequence[str],
    out: Path,
    *,
    part_size: int | None,
    is_restart: bool = False,
) -> None:
    """Raise the same error on all ranks if they differ in what determines the result, or one of them cannot take part.

    Files are not listed: the first rank finds a file, and the others compare its size.
    """
    if group.size == 1:
        return
    group.together(lambda: check_sources(sources))
    group.require_same(described(settings, sources, part_size))
    probe = group.on_first(lambda: _any_file(sources))
    group.together(lambda: check_probe(probe))
    if is_restart:
        group.together(lambda: check_restart(out, sources))
    group.together(lambda: _check_folder(group.rank, settings, sources, out, part_size))


def _any_file(sources: Sequence[str]) -> Probe | None:
    """Return a file of the sources. InputError is raised if this rank does not have them."""
    found = any_image(sources)
    return None if found is None else probe_of([found])


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
