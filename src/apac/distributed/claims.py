"""Claims of work in a folder that processes share, on one machine or several.

A claim is a file that only one process can create. Its owner touches it every few seconds. Another process takes it
over if it has seen no change for `EXPIRY` seconds of its own clock, so that the clocks of machines need not agree. It
takes it over at once if the owner ran on the same machine and the lock on the file is free, because the kernel frees
the locks of a process that ends. Claims only save work: two processes that work on the same part, because one of them
was suspended for longer, write the same bytes.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Self

from apac.distributed.ranks.group import machine
from apac.errors import StorageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

HEARTBEAT = 5.0  # seconds between two touches
ATTEMPTS = 20  # to create a file in a folder that other processes create and remove
EXPIRY = 60.0  # seconds without a change; file systems of a network show a change after up to a few seconds


class Claims:
    """The claims of this process in a folder. Use it as a context manager, which releases them.

    >>> folder = Path("claims")
    >>> with Claims(folder) as ours, Claims(folder) as theirs:
    ...     ours.take("7"), theirs.take("7"), theirs.take("8")
    (True, False, True)
    """

    def __init__(self, folder: Path, *, expiry: float = EXPIRY, heartbeat: float = HEARTBEAT) -> None:
        self._folder, self._expiry, self._heartbeat = folder, expiry, heartbeat
        self._held: dict[str, int] = {}  # file descriptors by name
        self._seen: dict[str, tuple[tuple[int, int], float]] = {}  # the state of others' claims, and since when
        self._ended, self._releasing = Event(), Lock()
        self._thread = Thread(target=self._touch, name="apac-claims", daemon=True)

    def __enter__(self) -> Self:
        try:
            _make_folder(self._folder)
        except OSError as error:
            raise _not_writable(self._folder, error) from error
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        for name in list(self._held):
            self.release(name)
        self._remove_dead()
        with suppress(OSError):
            self._folder.rmdir()  # if no other process has a claim

    def take(self, name: str) -> bool:
        """Claim a name, and return whether that succeeded; a claim whose owner is dead is taken over."""
        path = self._folder / name
        for _ in range(2):
            try:
                file = _create(path)
            except FileExistsError:
                if not self._is_dead(name):
                    return False
                with suppress(FileNotFoundError):
                    path.unlink()
                continue
            except OSError as error:
                raise _not_writable(self._folder, error) from error
            self._held[name] = file
            return True
        return False

    def is_taken(self, name: str) -> bool:
        """Return whether a living process, as far as is known, has claimed a name."""
        return not self._is_dead(name)

    def release(self, name: str) -> None:
        """Give up a claim, after its work is stored."""
        with self._releasing:
            file = self._held.pop(name)
            with suppress(OSError):
                # Not if another process has taken it over.
                if os.path.samestat(os.fstat(file), (self._folder / name).stat()):
                    (self._folder / name).unlink()
            os.close(file)

    def _remove_dead(self) -> None:
        """Remove the claims of processes that were killed after they had stored a part: no one takes these over.

        Another process may take such a claim over in this moment and lose it; see above what that costs.
        """
        names: list[str] = []
        with suppress(OSError):
            names = os.listdir(self._folder)
        for name in names:
            with suppress(OSError, StorageError):
                if self._is_dead(name):
                    (self._folder / name).unlink()

    def _is_dead(self, name: str) -> bool:
        try:
            # Opening a file makes a network file system look at the server.
            file = os.open(self._folder / name, os.O_RDWR | getattr(os, "O_NONBLOCK", 0))
        except FileNotFoundError:  # released in the meantime
            return True
        except OSError as error:
            raise _not_writable(self._folder, error) from error
        owner = b""
        try:
            with suppress(BlockingIOError):  # of a pipe, which no process of ours has made
                owner = os.read(file, 4096).partition(b"\n")[0]
            if owner.decode(errors="replace") == machine() and _try_lock(file):
                return True
            status = os.fstat(file)
        finally:
            os.close(file)
        state, now = (status.st_ino, status.st_mtime_ns), time.monotonic()
        if self._seen.get(name, (None, now))[0] != state:
            self._seen[name] = state, now
        return now - self._seen[name][1] > self._expiry

    def _touch(self) -> None:
        while not self._ended.wait(self._heartbeat):
            with self._releasing:  # the number of a closed file may be that of another one
                for file in list(self._held.values()):
                    with suppress(OSError):  # the server does not answer
                        os.utime(file)


def _make_folder(folder: Path) -> None:
    """Create a folder, unless it exists. Another process may remove it at any moment, even while `mkdir` looks."""
    for attempts_left in reversed(range(ATTEMPTS)):
        try:
            return folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, FileNotFoundError):
            if not attempts_left:
                raise


def _create(path: Path) -> int:
    for attempts_left in reversed(range(ATTEMPTS)):
        try:
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
            break
        except FileNotFoundError:  # the last process that released its claims removed the folder
            if not attempts_left:
                raise
            _make_folder(path.parent)
    # Locked before the machine is named: a claim that names it and is not locked belongs to a dead process.
    try:
        if _try_lock(file):
            os.write(file, f"{machine()}\nprocess {os.getpid()}\n".encode())
    except OSError:  # a full disk; others would wait until an empty claim expires
        path.unlink(missing_ok=True)
        os.close(file)
        raise
    return file


def _try_lock(file: int) -> bool:
    """Lock a file until it is closed or the process ends; return whether that succeeded."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # locked by another process, or a file system without locks
        return False
    return True


def _not_writable(folder: Path, error: OSError) -> StorageError:
    return StorageError(
        f"could not write to {folder}: {error.strerror or error}; free some space or choose another folder."
    )
