"""Temporary files and folders beside the file that they replace.

A killed process leaves its temporary file behind. The next process that writes the same file takes it over, so that
nothing accumulates: temporary files have numbers, not random names, and are locked while they are written. The kernel
frees the locks of a process that ends.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

WRITERS = 64  # of one file at the same time; further ones use random names


@contextmanager
def temporary_beside(path: Path, *, folder: bool = False) -> Iterator[Path]:
    """Yield an empty file, or a folder, beside `path`. Rename it or what is in it; what is left is removed.

    >>> with temporary_beside(Path("result.txt")) as temporary:
    ...     _ = temporary.write_text("complete")
    ...     _ = temporary.replace("result.txt")
    >>> [file.name for file in Path().iterdir()]
    ['result.txt']
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, file = _take(path, folder)
    try:
        if folder:
            for entry in temporary.iterdir():  # of a process that was killed
                with suppress(OSError):  # a program that it had started may still write there
                    _remove(entry)
        else:
            os.truncate(temporary, 0)
        yield temporary
    finally:
        with suppress(OSError):
            # Once it is renamed, another process may have created a file of the same name.
            if file is None or _is_open(temporary, file):
                _remove(temporary)
        if file is not None:
            os.close(file)


def _take(path: Path, folder: bool) -> tuple[Path, int | None]:
    """Create or take over a temporary file that no process writes; return it with its lock, if there are locks."""
    for number in range(WRITERS if fcntl is not None else 0):
        temporary = path.with_name(f".{path.name}.{number}")
        with suppress(OSError):  # not ours: a link, or a file of another user
            file = _open(temporary, folder)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_open(temporary, file):
                    return temporary, file
            except BlockingIOError:
                pass
            except OSError:  # a file system without locks
                os.close(file)
                _remove(temporary)
                break
            os.close(file)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    os.close(_open(temporary, folder))
    return temporary, None


def _open(temporary: Path, folder: bool) -> int:
    # A folder from someone else may have links of these names to any file.
    if folder:
        temporary.mkdir(exist_ok=True)
        return os.open(temporary, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_DIRECTORY", 0))
    return os.open(temporary, os.O_CREAT | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _is_open(temporary: Path, file: int) -> bool:
    """Return whether this is the open file: the process that had locked it may have renamed or removed it since."""
    try:
        found = os.lstat(temporary)
    except FileNotFoundError:
        return False
    own = stat.S_ISDIR(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_nlink == 1)
    return own and os.path.samestat(found, os.fstat(file))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
