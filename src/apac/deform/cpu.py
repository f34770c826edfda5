"""Selects the CPU kernels and distributes images over threads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from apac import trees
from apac.inference.workers import worker_pool

# Images per tile: enough to amortize the call overhead, few enough to stay in the cache.
MIN_TILE, MAX_TILE = 128, 1024
_kernels_enabled = True


def kernels_for(images: Tensor, parameters: Any = ()) -> Any | None:
    """Return the CPU kernels, or None if images are not on the CPU or need gradients, or numba is unavailable."""
    if not _kernels_enabled or images.device.type != "cpu":
        return None
    if torch.is_grad_enabled() and (images.requires_grad or trees.requires_grad(parameters)):
        return None
    return _load_kernels()


@contextmanager
def torch_path() -> Iterator[None]:
    """Use torch instead of the kernels within the context, in all threads, for comparisons."""
    global _kernels_enabled
    _kernels_enabled = False
    try:
        yield
    finally:
        _kernels_enabled = True


@lru_cache(maxsize=1)
def _load_kernels() -> Any | None:
    try:
        return import_module("apac.deform.kernels")
    except Exception as error:  # incompatible versions of numba fail in many ways
        logging.getLogger("apac").warning("numba is unavailable (%s); falling back to torch, which is slower.", error)
        return None


def apply_in_tiles(apply: Callable[[Tensor, Any], Tensor], images: Tensor, parameters: Any) -> Tensor:
    """Return apply(images, parameters), computed in parallel for tiles of the images on the CPU."""
    size = min(max(-(-len(images) // torch.get_num_threads()), MIN_TILE), MAX_TILE)
    if len(images) <= size or kernels_for(images, parameters) is None:
        return apply(images, parameters)
    shared = trees.size(parameters) == 1

    def apply_to_tile(start: int) -> Tensor:
        tile = slice(start, start + size)
        return apply(images[tile], parameters if shared else trees.rows(parameters, tile))

    with worker_pool() as workers:
        return torch.cat(list(workers.map(apply_to_tile, range(0, len(images), size))))
