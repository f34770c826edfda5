"""Reuse of freed memory."""

from __future__ import annotations

from functools import lru_cache

import torch

BLOCK = 31 << 20  # bytes; glibc never keeps larger blocks


@lru_cache(maxsize=1)
def keep_freed_blocks() -> None:
    """Let the process keep freed blocks of up to 31 MB for reuse. Only the first call has an effect.

    By default glibc returns large blocks to the system. Page faults on the next allocation of the same activations then
    cost more than computing them (training the CIFAR-10 network was a third slower). glibc raises its threshold to the
    size of the largest block that the process frees, so this function frees one. The process keeps at most its peak
    memory; no other behavior changes.
    """
    torch.empty(BLOCK, dtype=torch.uint8, device="cpu")
