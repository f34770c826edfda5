"""Memory that is freed and needed again."""

from __future__ import annotations

from functools import lru_cache

import torch

BLOCK = 31 << 20  # bytes; glibc does not keep larger ones


@lru_cache(maxsize=1)
def keep_freed_blocks() -> None:
    """Let the process keep freed blocks of up to 31 MB for reuse. Calls after the first do nothing.

    glibc returns large blocks to the system, which hands them out again page by page: for the activations of a training
    step or of a batch that costs more than computing them (training the CIFAR-10 network was a third slower). glibc
    raises its limit to the largest such block that the process frees, so this function frees one. The process keeps at
    most what it has used at once; no other behavior changes.
    """
    torch.empty(BLOCK, dtype=torch.uint8, device="cpu")
