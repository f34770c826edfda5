"""Memory that is freed and needed again."""

from __future__ import annotations

from functools import lru_cache

import torch

BLOCK = 31 << 20  # bytes; glibc does not keep larger ones


@lru_cache(maxsize=1)
def keep_freed_blocks() -> None:
    """From now on, let this process keep the blocks that it frees, up to 31 MB each.

    glibc returns large blocks to the system, which then hands them out again page by page: the activations of a step or
    of a batch cost more to get than to fill (training the CIFAR-10 network was a third faster without). It raises its
    limit to the largest such block that it has seen freed, so one is shown to it.
    """
    torch.empty(BLOCK, dtype=torch.uint8, device="cpu")
