"""apac classify with an output folder: any number of files, in parts that processes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from apac.cli.ranks import is_restart, process_group, rank_and_size, started_by_agent
from apac.cli.signals import interrupt_on_signal
from apac.cli.terminal import show_progress
from apac.errors import Interrupted
from apac.progress import no_progress

if TYPE_CHECKING:  # they import torch, which is slow
    from apac.distributed.tables import Format
    from apac.evaluation.reliability import Reliability
    from apac.runs.file_classifier import FileClassifier


def classify_files(
    load: Callable[[], tuple[FileClassifier, Reliability | None]],
    sources: Sequence[str],
    out: Path,
    *,
    parquet: bool,
    part_size: int | None,
) -> None:
    """Decide the files by what `load` returns, and say how to join the parts."""
    from apac.distributed.deciding import decide_files
    from apac.distributed.ranks.group import Group

    rank, ranks = rank_and_size()
    format: Format = "parquet" if parquet else "csv"
    with interrupt_on_signal(), show_progress() as progress:
        try:
            if started_by_agent():
                decider, reliability, again = _agreed(load, sources, out, format, part_size)
            else:
                (decider, reliability), again = load(), is_restart(Group())
            done = decide_files(
                decider,
                sources,
                out,
                reliability=reliability,
                format=format,
                part_size=part_size,
                rank=rank,
                ranks=ranks,
                is_restart=again,
                progress=progress if rank == 0 else no_progress,
            )
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted; the same command continues with what is left in {out}.") from None
    of_rank = f"rank {rank}: " if ranks > 1 else ""
    unreadable = f", {done.unreadable:,} of them unreadable (see that column)" if done.unreadable else ""
    print(f"{of_rank}decided {done.decided:,} of {done.job.files.count:,} files{unreadable}.")
    if rank == 0:
        print(f"All decisions are in {done.job.parts.folder}; join them with: apac merge {quote(str(out))} --csv FILE")


def _agreed(
    load: Callable[[], tuple[FileClassifier, Reliability | None]],
    sources: Sequence[str],
    out: Path,
    format: Format,
    part_size: int | None,
) -> tuple[FileClassifier, Reliability | None, bool]:
    """Return what `load` returns and whether a rank was restarted, after the ranks of torchrun have agreed.

    From then on they do not communicate.
    """
    from apac.distributed.agreement import check_agreement
    from apac.distributed.settings import settings_of

    with process_group("cpu") as group:
        decider, reliability = group.together(load)
        settings, again = settings_of(decider, reliability, format), is_restart(group)
        check_agreement(group, settings, sources, out, part_size=part_size, is_restart=again)
    return decider, reliability, again
