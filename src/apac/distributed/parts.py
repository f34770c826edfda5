"""The decided parts of a job, each a file with the digest of its content beside it.

A part is complete when its digest is written, which is the last step. A file and its digest replace older ones
atomically, and the same part always has the same content, so that it does not matter how often it is written.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Literal

from apac.errors import StorageError
from apac.runs.storage import write_bytes, write_text
from apac.validation import open_regular

State = Literal["complete", "missing", "damaged"]

DIGEST = ".sha256"
LINE_LENGTH = 100  # characters that are read of a digest, more than its line has


@dataclass(frozen=True)
class Parts:
    """The files of the parts in a folder, `count` of them when the job is done."""

    folder: Path
    suffix: str  # ".csv" or ".parquet"
    count: int
    max_bytes: Callable[[int], int]  # of a part

    def path(self, part: int) -> Path:
        return self.folder / f"{_name(part)}{self.suffix}"

    def write(self, part: int, content: bytes) -> None:
        """Store a part."""
        path = self.path(part)
        write_bytes(path, content)
        write_text(self._digest(part), self._line(part, hashlib.sha256(content).hexdigest()))

    def is_complete(self, part: int) -> bool:
        """Return whether a part is stored, without reading it."""
        return self._digest(part).exists()

    def complete(self) -> set[int]:
        """Return the parts that are stored, without reading them."""
        try:
            with os.scandir(self.folder) as entries:
                names = [entry.name.removesuffix(DIGEST) for entry in entries if _is_digest(entry)]
        except FileNotFoundError:
            return set()
        except OSError as error:
            raise StorageError(f"could not list {self.folder}: {error.strerror or error}; remove it.") from error
        numbers = ((name, int(name)) for name in names if name.isdecimal())
        return {part for name, part in numbers if part < self.count and name == _name(part)}

    def state(self, part: int) -> State:
        """Return whether a part is stored, with the content that its digest tells."""
        file = self.open(part)
        if file is None:
            return "damaged" if self.is_complete(part) else "missing"
        file.close()
        return "complete"

    def open(self, part: int) -> BufferedReader | None:
        """Open a part, or return None if it is missing or damaged."""
        try:
            expected = self._expected(part)
            file = open_regular(self.path(part))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(part, error) from error
        try:
            fits = os.fstat(file.fileno()).st_size <= self.max_bytes(part)
            if fits and self._line(part, hashlib.file_digest(file, "sha256").hexdigest()) == expected:
                file.seek(0)
                return file
        except OSError as error:
            file.close()
            raise self._unreadable(part, error) from error
        file.close()
        return None

    def discard_damaged(self) -> Iterator[int]:
        """Yield the parts that are damaged, after they were removed, so that they are decided again."""
        for part in sorted(self.complete()):
            if self.state(part) == "damaged":
                logging.getLogger("apac").warning("%s is damaged and is decided again.", self.path(part))
                self._digest(part).unlink(missing_ok=True)
                yield part

    def _unreadable(self, part: int, error: OSError) -> StorageError:
        reason = error.strerror or error
        return StorageError(f"could not read {self.path(part)}: {reason}; remove it, and it is decided again.")

    def _expected(self, part: int) -> str:
        with open_regular(self._digest(part)) as file:
            return file.read(LINE_LENGTH).decode(errors="replace")

    def _line(self, part: int, digest: str) -> str:
        """Return a digest in the format of sha256sum, which can check the folder: sha256sum -c *.sha256"""
        return f"{digest}  {self.path(part).name}\n"

    def _digest(self, part: int) -> Path:
        return self.folder / f"{_name(part)}{DIGEST}"


def _name(part: int) -> str:
    return f"{part:06}"


def _is_digest(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry of the folder is a digest that exists: a link may lead nowhere."""
    return entry.name.endswith(DIGEST) and (not entry.is_symlink() or os.path.exists(entry.path))
