"""A lock on a folder, for a file in it that processes read, change and write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait until no other process or thread has locked the folder, and lock it during the block.

    The folder itself is locked, so that no file is left behind; the kernel frees the locks of a process that ends.
    There is no lock on Windows and on file systems that have none.
    """
    with ExitStack() as stack:
        if fcntl is not None:
            with suppress(OSError):  # what cannot be written is reported by the caller that writes it
                folder.mkdir(parents=True, exist_ok=True)
                file = os.open(folder, os.O_RDONLY)
                stack.callback(os.close, file)
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
