"""The image files of a job: found in folders, patterns and lists, and stored so that any part is read by itself."""

from __future__ import annotations

import glob
import hashlib
import os
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, zip_longest
from pathlib import Path
from typing import BinaryIO

from apac import limits
from apac.data.folder_files import OTHER_FORMATS, SUFFIXES
from apac.errors import InputError, StorageError
from apac.runs.storage import write_atomically
from apac.validation import open_regular, shortened

STANDARD_INPUT = "-"
NAMES, OFFSETS = "files.list", "files.offsets"
SEPARATOR = b"\0"  # the only byte that no path contains
BLOCK = 1 << 16  # bytes
PART_SIZE = 512  # files
MAX_PARTS = 100_000  # more files make larger parts, so that a folder of parts stays small enough for a file system


def find_images(sources: Sequence[str]) -> Iterator[str]:
    """Yield the files of all sources, one after the other.

    A source is a file; a folder, which stands for the images in it and in its subfolders; a pattern such as "*.jpg";
    "@list", a file with one path per line; or "-", such lines on the standard input. Only the names of one folder, or
    the matches of one pattern, are in memory at a time.
    """
    for source in sources:
        if source == STANDARD_INPUT:
            yield from _lines(sys.stdin.buffer, "the standard input")
        elif os.path.isdir(source):
            yield from _walk(str(Path(source)))
        elif os.path.exists(source):
            yield source
        elif source.startswith("@"):
            try:
                with open(source[1:], "rb") as lines:
                    yield from _lines(lines, f"the list {source[1:]}")
            except OSError as error:
                raise InputError(
                    f"the list {source[1:]} cannot be read: {error.strerror or error}; give another."
                ) from error
        elif glob.has_magic(source):
            for match in sorted(glob.iglob(source, recursive=True)):
                yield from _walk(match) if os.path.isdir(match) else [match]
        else:
            raise InputError(
                f"there is no file or folder {source}; give images, folders, a quoted pattern, @list or -."
            )


def check_sources(sources: Sequence[str]) -> None:
    """Raise InputError if a source is not there. Nothing is listed, and the standard input is not read."""
    for source in sources:
        if source != STANDARD_INPUT and not os.path.exists(source) and not _is_pattern(source):
            next(find_images([source]), None)


def any_image(sources: Sequence[str]) -> str | None:
    """Return one of the files, or None. No folder is listed, and neither the standard input nor a pattern is tried."""
    for source in sources:
        if os.path.isdir(source):
            found = _any_in(str(Path(source)))
        elif source == STANDARD_INPUT or _is_pattern(source):
            found = None
        else:
            found = next(find_images([source]), None)
        if found is not None:
            return found
    return None


def _is_pattern(source: str) -> bool:
    return glob.has_magic(source) and not source.startswith("@") and not os.path.exists(source)


def _lines(file: BinaryIO, name: str) -> Iterator[str]:
    longest = limits.PATH_BYTES + len(b"\r\n")
    for number in count(1):
        line = file.readline(longest + 1)  # a file without line ends would not fit into memory
        if not line:
            return
        path = line.rstrip(b"\r\n")
        if SEPARATOR in path:
            raise InputError(
                f"{name} must have one path per line, got a NUL character in line {number:,}; list them without "
                "-print0."
            )
        if len(line) > longest or len(path) > limits.PATH_BYTES:
            raise InputError(
                f"{name} must have one path per line, got more than {limits.PATH_BYTES:,} bytes in line {number:,}; "
                "end each path with a line break."
            )
        if path:
            yield os.fsdecode(path)


def _walk(folder: str) -> Iterator[str]:
    """Yield the image files of a folder in the order of `apac.data.folder_files.image_files`, one folder at a time."""
    try:
        with os.scandir(folder) as entries:
            found = sorted((entry for entry in entries if _may_hold_images(entry)), key=lambda entry: entry.name)
    except OSError as error:
        raise _not_listed(folder, error) from error
    for entry in found:
        path = entry.name if folder == "." else entry.path
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(path)
        else:
            yield path


def _any_in(folder: str) -> str | None:
    """Return one of the images that `_walk` yields, whichever the file system names first."""
    subfolders = []
    try:
        with os.scandir(folder) as entries:
            for entry in filter(_may_hold_images, entries):
                if not entry.is_dir(follow_symlinks=False):
                    return entry.path
                subfolders.append(entry.path)
    except OSError as error:
        raise _not_listed(folder, error) from error
    return next((found for subfolder in subfolders if (found := _any_in(subfolder)) is not None), None)


def _may_hold_images(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith("."):
        return False
    if entry.is_dir():
        return not entry.is_symlink()  # links to folders may form a circle
    suffix = os.path.splitext(entry.name)[1].lower()
    # Images in formats that cannot be read are decided too, so that the result says why they have no answer.
    return suffix in OTHER_FORMATS or (suffix in SUFFIXES and entry.is_file())


@dataclass(frozen=True)
class FileList:
    """The stored list of the files of a job; the names of a part are read when it is decided."""

    folder: Path
    count: int
    digest: str  # SHA-256 of the names
    part_size: int

    @property
    def parts(self) -> int:
        """The number of parts, all of `part_size` files but the last."""
        return -(-self.count // self.part_size)

    @property
    def is_consistent(self) -> bool:
        """Whether the numbers, which come from a file, are those of the stored list: all parts are listed by them."""
        if not all(type(number) is int and number >= 1 for number in (self.count, self.part_size)):
            return False
        try:
            names = (self.folder / NAMES).stat().st_size
        except OSError:
            return False
        # A name has at least one character and the separator.
        return self.parts <= limits.JOB_PARTS and names >= 2 * self.count

    def files_of(self, part: int) -> int:
        """Return the number of files of a part."""
        return min(self.part_size, self.count - part * self.part_size)

    def read(self, part: int) -> list[str]:
        """Return the paths of the files of a part."""
        names = b""
        with (
            suppress(OSError, ValueError),
            open_regular(self.folder / OFFSETS) as offsets,
            open_regular(self.folder / NAMES) as file,
        ):
            offsets.seek(8 * part)
            first, last = array("Q", offsets.read(16))
            longest = limits.PATH_BYTES + len(SEPARATOR)
            size = min(os.fstat(file.fileno()).st_size, first + longest * self.files_of(part))
            if first <= last <= size:
                file.seek(first)
                names = file.read(last - first)
        *paths, rest = names.split(SEPARATOR)
        if rest or len(paths) != self.files_of(part) or not _fit(paths):
            raise _damaged(self.folder)
        return [os.fsdecode(path) for path in paths]

    def __iter__(self) -> Iterator[str]:
        """Yield all paths. At the end they are compared with the digest."""
        digest, rest = hashlib.sha256(), b""
        try:
            with open_regular(self.folder / NAMES) as file:
                while block := file.read(BLOCK):
                    digest.update(block)
                    *names, rest = (rest + block).split(SEPARATOR)
                    if not _fit([*names, rest]):
                        raise _damaged(self.folder)
                    yield from map(os.fsdecode, names)
        except OSError as error:
            raise _damaged(self.folder) from error
        if digest.hexdigest() != self.digest:
            raise _damaged(self.folder)

    def first_difference(self, paths: Iterable[str]) -> str | None:
        """Describe where other paths differ from these, or return None if they are the same."""
        for number, (stored, path) in enumerate(zip_longest(self, paths), start=1):
            if stored != path:
                ours, theirs = (shortened(name or "the end of the list", limits.QUOTED_TEXT) for name in (path, stored))
                return f"file {number:,} is {theirs}, not {ours}"
        return None


def store_list(folder: Path, paths: Iterable[str], part_size: int | None = None) -> FileList:
    """Write the paths to a folder; without a part size, parts have 512 files, or more if they would be too many."""
    step = part_size or PART_SIZE
    digest, files, offsets = hashlib.sha256(), 0, array("Q", [0])

    def write(temporary: Path) -> None:
        nonlocal files
        size = 0
        with temporary.open("wb") as file:
            for path in paths:
                name = os.fsencode(path) + SEPARATOR
                if len(name) > limits.PATH_BYTES + len(SEPARATOR):
                    raise InputError(
                        f"the path {shortened(path, limits.QUOTED_TEXT)} has more than {limits.PATH_BYTES:,} bytes; "
                        "rename its folders, or omit it."
                    )
                file.write(name)
                digest.update(name)
                files, size = files + 1, size + len(name)
                if not files % step:
                    offsets.append(size)
        if files % step:
            offsets.append(size)
        # Errors are raised here, so that no list is left.
        if not files:
            raise InputError("there are no image files to decide; give images, folders, a quoted pattern, @list or -.")
        if part_size and -(-files // part_size) > limits.JOB_PARTS:
            raise InputError(
                f"{files:,} files in parts of {part_size:,} are more than {limits.JOB_PARTS:,} parts; choose larger "
                "parts."
            )

    write_atomically(folder / NAMES, write)
    merged = 1 if part_size else -(-files // (step * MAX_PARTS))
    starts = array("Q", [*offsets[:-1:merged], offsets[-1]])
    write_atomically(folder / OFFSETS, lambda temporary: temporary.write_bytes(starts.tobytes()))
    return FileList(folder, files, digest.hexdigest(), step * merged)


def _fit(paths: Iterable[bytes]) -> bool:
    """Return whether all paths are short enough for their rows to fit into a part."""
    return all(len(path) <= limits.PATH_BYTES for path in paths)


def _not_listed(folder: str, error: OSError) -> InputError:
    return InputError(
        f"the folder {folder} cannot be listed: {error.strerror or error}; change its permissions, or omit it."
    )


def _damaged(folder: Path) -> StorageError:
    return StorageError(f"the list of files in {folder} is damaged; remove the folder and start again.")
