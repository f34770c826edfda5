"""Decide any number of image files in bounded memory, in parts that any number of processes share.

A part is always decided in the same way: the same files in the same batches by the same engine. Its bytes therefore do
not depend on the number of processes, on their threads, on which of them decided it, nor on interruptions.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from apac.data.image_file import without_warnings
from apac.distributed.claims import Claims
from apac.distributed.job import CLAIMS, Job, check_folder, open_job
from apac.distributed.part_queue import PartQueue
from apac.distributed.settings import settings_of
from apac.distributed.tables import Format, Row, row_of, to_bytes, unreadable_row
from apac.errors import InputError, require
from apac.evaluation.records import decision_records
from apac.evaluation.reliability import Reliability
from apac.progress import Progress, no_progress
from apac.runs.classified import ClassifiedImages
from apac.runs.file_classifier import FileClassifier

FILES_PER_TASK = 8  # that a thread decodes at a time
POLL, MAX_POLL = 0.1, 5.0  # seconds between two polls, while other processes decide the last parts


@dataclass(frozen=True)
class DecidedFiles:
    """What `decide_files` did."""

    job: Job
    decided: int  # files that this process decided
    unreadable: int  # of them


def decide_files(
    decider: FileClassifier,
    sources: Sequence[str],
    out: Path,
    *,
    reliability: Reliability | None = None,
    format: Format = "csv",
    part_size: int | None = None,
    rank: int = 0,
    ranks: int = 1,
    is_restart: bool = False,
    progress: Progress = no_progress,
) -> DecidedFiles:
    """Decide all files of the sources, and return when every part is stored in the folder `out`.

    Parts that are stored already are skipped, also those of processes that work at the same time. A file that cannot
    be read is a row with the reason. `rank` of `ranks` is a hint where to start; correctness does not depend on it.
    `is_restart` says that an earlier attempt may have read the standard input.
    """
    if part_size is not None and part_size < 1:
        raise InputError(f"part_size must be an integer of at least 1, got {part_size}.")
    if format == "parquet":
        require("pyarrow", extra="parquet")
    check_folder(out)
    settings = settings_of(decider, reliability, format)
    with Claims(out / CLAIMS) as claims:
        job = open_job(out, claims, settings, sources, part_size=part_size, is_first=rank == 0, is_restart=is_restart)
        queue = PartQueue(job, claims, start=rank * job.files.parts // ranks, is_first=rank == 0, progress=progress)
        if queue.is_complete:
            return DecidedFiles(job, 0, 0)
        prepared = decider.prepared(job.files.count)
        threads = torch.get_num_threads()
        with (
            without_warnings(),
            ThreadPoolExecutor(threads, thread_name_prefix="apac-decode") as readers,
            ThreadPoolExecutor(1, thread_name_prefix="apac-write") as writer,
        ):
            worker = Worker(prepared, reliability, job, queue, readers, writer)
            try:
                worker.run()
            except BaseException:
                readers.shutdown(wait=False, cancel_futures=True)
                raise
        return DecidedFiles(job, worker.decided, worker.unreadable)


@dataclass(eq=False)
class _Batch:
    """Files of a part that are decided at once."""

    part: int
    paths: list[str]
    is_last: bool
    pixels: list[Future[list[Tensor | str]]]  # of FILES_PER_TASK files each; or why a file is unreadable


class Worker:
    """Claims parts, decodes their files in threads ahead of the network, decides them, and writes them in a thread."""

    def __init__(
        self,
        decider: FileClassifier,
        reliability: Reliability | None,
        job: Job,
        queue: PartQueue,
        readers: ThreadPoolExecutor,
        writer: ThreadPoolExecutor,
        *,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._decider, self._reliability, self._job, self._queue = decider, reliability, job, queue
        self._readers, self._writer, self._wait = readers, writer, wait
        self._unread: deque[tuple[int, list[str], bool]] = deque()  # batches of claimed parts
        self._next: _Batch | None = None
        self._writing: tuple[int, Future[None]] | None = None
        self.decided = self.unreadable = 0

    def run(self) -> None:
        """Work until every part is stored, by this process or another one."""
        rows: list[Row] = []
        pause = POLL
        while True:
            batch, self._next = self._next or self._read_ahead(), None
            if batch is None:
                self._finish_writing()
                if self._queue.is_complete:
                    return
                self._wait(pause)
                pause = min(2 * pause, MAX_POLL)
                continue
            pause = POLL
            self._next = self._read_ahead()  # while the network decides this one
            rows += self._decide(batch)
            if batch.is_last:
                self._finish_writing()
                self._writing = batch.part, self._writer.submit(self._write, batch.part, rows)
                rows = []

    def _read_ahead(self) -> _Batch | None:
        """Start to decode the next batch, of the part under way or of another one."""
        if not self._unread:
            part = self._queue.claim()
            if part is None:
                return None
            paths = self._job.files.read(part)
            starts = range(0, len(paths), self._decider.batch_size)
            self._unread.extend((part, paths[i : i + self._decider.batch_size], i == starts[-1]) for i in starts)
        part, paths, is_last = self._unread.popleft()
        tasks = (paths[i : i + FILES_PER_TASK] for i in range(0, len(paths), FILES_PER_TASK))
        return _Batch(part, paths, is_last, [self._readers.submit(self._decode, task) for task in tasks])

    def _decode(self, paths: list[str]) -> list[Tensor | str]:
        decoded: list[Tensor | str] = []
        for path in paths:
            try:
                decoded.append(self._decider.decode(Path(path)))
            except InputError as error:
                if not os.path.exists(path):
                    self._job.check_data()  # a file may be missing, but not all of them
                decoded.append(str(error))
        return decoded

    def _decide(self, batch: _Batch) -> list[Row]:
        """Return the rows of a batch, in the order of its files."""
        decoded = [item for task in batch.pixels for item in task.result()]
        readable = [item for item in decoded if isinstance(item, Tensor)]
        paths = [path for path, item in zip(batch.paths, decoded, strict=True) if isinstance(item, Tensor)]
        classes = self._job.classes
        records: list[dict[str, Any]] = []
        if readable:
            decision = self._decider.decide(torch.stack(readable))
            is_plain = self._decider.plain is not None
            files = ClassifiedImages(tuple(map(Path, paths)), decision, classes, ((),) * len(paths), {}, is_plain)
            records = decision_records(files, strength=self._decider.strength, reliability=self._reliability)
        next_record = iter(records)
        self.decided += len(decoded)
        self.unreadable += len(decoded) - len(readable)
        return [
            unreadable_row(path, item, classes) if isinstance(item, str) else row_of(next(next_record), classes)
            for path, item in zip(batch.paths, decoded, strict=True)
        ]

    def _write(self, part: int, rows: list[Row]) -> None:
        self._queue.store(part, to_bytes(rows, self._job.classes, self._job.format))

    def _finish_writing(self) -> None:
        if self._writing is not None:
            part, writing = self._writing
            writing.result()
            self._queue.mark_stored(part)
            self._writing = None
