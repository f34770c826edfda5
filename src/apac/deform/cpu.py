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
from apac.inference.memory import keep_freed_blocks
from apac.inference.workers import worker_pool

# Images of up to TILE_PIXELS pixels per tile: enough to amortize the call overhead, few enough to stay in the cache.
MIN_TILE, MAX_TILE = 512, 1024
TILE_PIXELS = 32 * 32
_kernels_enabled = True


def kernels_for(images: Tensor, parameters: Any = ()) -> Any | None:
    """Return the CPU kernels, or None if images are not on the CPU or need gradients, or numba is unavailable."""
    if not images.is_cpu:
        return None
    if torch.is_grad_enabled() and (images.requires_grad or trees.requires_grad(parameters)):
        return None
    return load_kernels("apac.deform.kernels")


def load_kernels(module: str) -> Any | None:
    """Return a module of kernels, or None within `torch_path` or if numba is unavailable."""
    return _load_kernels(module) if _kernels_enabled else None


def as_arrays(*tensors: Tensor) -> tuple[Any, ...]:
    """Return numpy views of the tensors, or the tensors if they are not on the CPU or need gradients.

    Arithmetic on the parameters of a few images takes a fraction of the time in numpy. Assignments to a view change the
    tensor.
    """
    for tensor in tensors:
        if not tensor.is_cpu or tensor.requires_grad:
            return tensors
    return tuple([tensor.numpy() for tensor in tensors])


def as_tensor(array: Any) -> Tensor:
    """Return a tensor that shares the memory of an array; a tensor stays as it is. Faster than `torch.as_tensor`."""
    return array if isinstance(array, Tensor) else torch.from_numpy(array)


@contextmanager
def torch_path() -> Iterator[None]:
    """Use torch instead of the kernels within the context, in all threads, for comparisons."""
    global _kernels_enabled
    _kernels_enabled = False
    try:
        yield
    finally:
        _kernels_enabled = True


@lru_cache
def _load_kernels(module: str) -> Any | None:
    try:
        return import_module(module)
    except Exception as error:  # incompatible versions of numba fail in many ways
        _log_missing(str(error))
        return None


@lru_cache
def _log_missing(reason: str) -> None:
    """Log once why there are no kernels."""
    logging.getLogger("apac").warning("numba is unavailable (%s); falling back to torch, which is slower.", reason)


def _tile_size(images: Tensor) -> int:
    """Return the number of images of a tile: one tile per thread, but one for all if they are few.

    Waking a thread can take a millisecond, as long as a hundred small images.
    """
    n, _, height, width = images.shape
    times_larger = max(1, height * width // TILE_PIXELS)
    shortest, longest = max(1, MIN_TILE // times_larger), max(1, MAX_TILE // times_larger)
    return n if n <= shortest else min(-(-n // torch.get_num_threads()), longest)


def apply_in_tiles(apply: Callable[[Tensor, Any], Tensor], images: Tensor, parameters: Any) -> Tensor:
    """Return apply(images, parameters), computed in parallel for tiles of the images on the CPU."""
    keep_freed_blocks()  # page faults on new memory would take as long as the deformation
    size = _tile_size(images)
    if images.shape[0] <= size or kernels_for(images, parameters) is None:
        return apply(images, parameters)
    shared = trees.size(parameters) == 1
    if shared and torch.get_num_threads() == 1:  # nothing to share among threads, and nothing that has to fit the cache
        return apply(images, parameters)

    def apply_to_tile(start: int) -> Tensor:
        tile = slice(start, start + size)
        return apply(images[tile], parameters if shared else trees.rows(parameters, tile))

    with worker_pool() as workers:
        return torch.cat(list(workers.map(apply_to_tile, range(0, len(images), size))))
