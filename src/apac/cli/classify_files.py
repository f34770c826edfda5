"""apac classify with an output folder: any number of files, in parts that processes share."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from apac.cli.terminal import show_progress
from apac.errors import InputError, Interrupted
from apac.progress import no_progress

if TYPE_CHECKING:  # imports torch, which is slow
    from apac.runs.file_classifier import FileClassifier


def classify_files(
    deciding: FileClassifier,
    sources: Sequence[str],
    out: Path,
    *,
    folders: Sequence[Path | None],
    parquet: bool,
    part_size: int | None,
) -> None:
    """Decide the files, and say how to join the parts. `folders` may have the evaluation of the run."""
    from apac.distributed.deciding import decide_files
    from apac.evaluation.reliability import find_reliability

    rank, ranks = _rank()
    reliability = find_reliability(folders, deciding.classifier, plain=deciding.plain is not None)
    with _interrupt_on_sigterm(), show_progress() as progress:
        try:
            done = decide_files(
                deciding,
                sources,
                out,
                reliability=reliability,
                format="parquet" if parquet else "csv",
                part_size=part_size,
                rank=rank,
                ranks=ranks,
                progress=progress if rank == 0 else no_progress,
            )
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted; the same command continues with what is left in {out}.") from None
    of_rank = f"rank {rank}: " if ranks > 1 else ""
    unreadable = f", {done.unreadable:,} of them unreadable (see that column)" if done.unreadable else ""
    print(f"{of_rank}decided {done.decided:,} of {done.job.files.count:,} files{unreadable}.")
    if rank == 0:
        print(f"All decisions are in {done.job.parts.folder}; join them with: apac merge {out} --csv FILE")


def _rank() -> tuple[int, int]:
    """Return the rank of this process and the number of ranks, as torchrun and other launchers set them."""
    texts = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    try:
        rank, ranks = map(int, texts)
    except ValueError:
        rank, ranks = -1, 0
    if not 0 <= rank < ranks:
        raise InputError(
            f"RANK and WORLD_SIZE must be integers with 0 <= RANK < WORLD_SIZE, got {texts[0]} and {texts[1]}."
        )
    return rank, ranks


@contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """Treat SIGTERM, by which launchers end a process, like Ctrl-C: its claims are released."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return
    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
