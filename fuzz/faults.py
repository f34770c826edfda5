"""What may go wrong around a command, for a process of its own: a full disk, a slow one, a clock that jumps."""

from __future__ import annotations

import ctypes
import os
import resource
import time
from dataclasses import dataclass
from itertools import count
from typing import Any

WAITING = "waiting for the disk"  # on standard output
CAPABILITY_VERSION = 0x20080522
DAY = 86_400.0


@dataclass(frozen=True)
class Fault:
    """What a command meets; the default is nothing."""

    file_bytes: int | None = None  # no file can be larger, as if the disk were full
    slow_disk: bool = False  # it stores a file only after ten minutes
    read_only: bool = False  # the permissions of files also hold for root
    no_home: bool = False
    clock_jumps: bool = False

    def apply(self) -> None:
        """Change this process for good."""
        if self.file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.file_bytes, self.file_bytes))
        if self.slow_disk:
            os.fsync = _wait
        if self.read_only:
            _drop_capabilities()
        if self.no_home:
            os.environ["HOME"] = "/proc/home"  # which cannot be made
            for name in ("APAC_DATA", "XDG_CACHE_HOME"):
                os.environ.pop(name, None)
        if self.clock_jumps:
            _jump()


def _wait(fd: object) -> None:
    print(WAITING, flush=True)
    time.sleep(600)


def _drop_capabilities() -> None:
    """Give up the rights of root, which may write to any folder."""
    header, none = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, none):
        raise OSError(ctypes.get_errno(), "capset")


def _jump() -> None:
    """Let the clock of the day jump at every look, by up to a week to and fro, also for the times of touched files."""
    exact, touch, looks = time.time, os.utime, count()

    def jumping() -> float:
        return exact() + (next(looks) * 37 % 15 - 7) * DAY

    def touch_then(path: Any, times: Any = None, **options: Any) -> None:
        touch(path, times or (jumping(), jumping()), **options)

    time.time = jumping
    time.time_ns = lambda: int(jumping() * 1e9)
    os.utime = touch_then
