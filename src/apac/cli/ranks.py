"""The process group of a command that torchrun started on several ranks."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from apac.errors import InputError
from apac.progress import Progress, no_progress

if TYPE_CHECKING:  # they import torch, which is slow
    from torch.distributed import Store  # type: ignore[attr-defined]

    from apac.distributed.ranks.group import Group


KEY, STARTED = "apac", "apac has started"
SECONDS_TO_JOIN = 600.0
ATTEMPT = timedelta(seconds=3)
# For a rank that waits while another one decodes a folder. One that dies is noticed at once, by its closed connection.
LONGEST_WAIT = timedelta(days=7)


def rank_and_size() -> tuple[int, int]:
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


def started_by_torchrun() -> bool:
    """Return whether this process is one of several ranks. Variables that mean nothing are left to `rank_and_size`."""
    try:
        return "RANK" in os.environ and rank_and_size()[1] > 1
    except InputError:
        return False


def started_by_agent() -> bool:
    """Return whether an agent of torchrun started this rank, which also ends and restarts all ranks together."""
    return started_by_torchrun() and "TORCHELASTIC_RUN_ID" in os.environ


def rank() -> int:
    return rank_and_size()[0] if started_by_torchrun() else 0


@contextmanager
def process_group(device: str | None = None) -> Iterator[Group]:
    """Join the ranks that torchrun started, by gloo and on GPUs by NCCL; without it, yield a group of one."""
    from apac.distributed.ranks.group import Group

    if not started_by_torchrun():
        yield Group()
        return
    if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise InputError(
            f"RANK and WORLD_SIZE name several ranks, but {' and '.join(missing)}, by which they meet, "
            f"{'are' if len(missing) > 1 else 'is'} not set; start the command with torchrun, or unset all of them."
        )
    import torch

    on_gpu = torch.cuda.is_available() and (device is None or device.startswith("cuda"))
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    try:
        torch.distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            store=_fresh_store(),
            rank=rank(),
            world_size=int(os.environ["WORLD_SIZE"]),
            timeout=LONGEST_WAIT,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise InputError(f"the ranks cannot reach each other: {reason}; check the options of torchrun.") from error
    try:
        yield Group.current()
    finally:
        torch.distributed.destroy_process_group()


def _fresh_store() -> Store:
    """Return a store that the first rank creates for this attempt; its address is in the store of torchrun's agent.

    The agent keeps its store across restarts. There, ranks would find addresses of ranks that were killed, and wait for
    them. An address of a dead first rank cannot be connected to, or does not answer with its token.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    shared = TCPStore(host, port, is_master=not by_agent and rank() == 0, wait_for_workers=False)
    if not by_agent:
        return shared
    if rank() == 0:
        store, token = TCPStore(host, 0, is_master=True, wait_for_workers=False), secrets.token_hex(8)
        store.set(KEY, token)
        shared.set(KEY, f"{store.port} {token}")
        return store
    deadline = time.monotonic() + SECONDS_TO_JOIN
    while True:
        found, token = shared.get(KEY).decode().split()
        with suppress(RuntimeError):  # no process listens there
            store = TCPStore(host, int(found), is_master=False, wait_for_workers=False, timeout=ATTEMPT)
            if store.get(KEY).decode() == token:
                return store
        if time.monotonic() > deadline:
            raise RuntimeError(f"rank 0 has not started within {SECONDS_TO_JOIN:.0f} s")


def is_restart(group: Group) -> bool:
    """Return whether torchrun restarted a rank."""
    return any(group.gather(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"))


def note_start() -> None:
    """Note in the store of torchrun's agent, which outlives this attempt, that a training has started."""
    if started_by_agent():
        _agent_store().set(STARTED, "")


def continues(group: Group) -> bool:
    """Return whether torchrun restarted a rank after a training had started, which is then continued."""
    if not is_restart(group):
        return False
    if os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == "1":  # each attempt has a store of its own
        return True
    return group.on_first(lambda: bool(_agent_store().check([STARTED])))


def _agent_store() -> Store:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False)


def on_first_rank(progress: Progress) -> Progress:
    """Return the callback for the first rank, and one that does nothing for the others."""
    return no_progress if rank() else progress
