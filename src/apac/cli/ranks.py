"""The process group of a command that torchrun started on several ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from apac.errors import InputError
from apac.progress import Progress, no_progress

if TYPE_CHECKING:  # imports torch, which is slow
    from apac.distributed.ranks.group import Group


def started_by_torchrun() -> bool:
    """Return whether this process is one of several ranks."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def rank() -> int:
    return int(os.environ["RANK"]) if started_by_torchrun() else 0


@contextmanager
def process_group(device: str | None = None) -> Iterator[Group]:
    """Join the ranks that torchrun started, by gloo and on GPUs by NCCL; without it, yield a group of one."""
    from apac.distributed.ranks.group import Group

    if not started_by_torchrun():
        yield Group()
        return
    import torch

    on_gpu = torch.cuda.is_available() and (device is None or device.startswith("cuda"))
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    try:
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    except (RuntimeError, ValueError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise InputError(f"the ranks cannot reach each other: {reason}; check the options of torchrun.") from error
    try:
        yield Group.current()
    finally:
        torch.distributed.destroy_process_group()


def is_restart(group: Group) -> bool:
    """Return whether torchrun restarted a rank, so that the work of an earlier attempt is continued."""
    return any(group.gather(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"))


def on_first_rank(progress: Progress) -> Progress:
    """Return the callback for the first rank, and one that does nothing for the others."""
    return no_progress if rank() else progress
