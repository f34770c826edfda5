"""When the CPU kernels are used, and how images are shared among the threads."""

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

TILE = (128, 1024)  # images, at least and at most: large enough to hide the calls, small enough to stay at hand
_by_torch_alone = False


def kernels(images: Tensor, parameters: Any = ()) -> Any | None:
    """The module of CPU kernels for images on the CPU; None for others, and where gradients must pass."""
    if _by_torch_alone or images.device.type != "cpu":
        return None
    if torch.is_grad_enabled() and (images.requires_grad or trees.requires_grad(parameters)):
        return None
    return _kernels()


@contextmanager
def torch_path() -> Iterator[None]:
    """Without kernels for the while, in all threads: to compare the two."""
    global _by_torch_alone
    _by_torch_alone = True
    try:
        yield
    finally:
        _by_torch_alone = False


@lru_cache(maxsize=1)
def _kernels() -> Any | None:
    try:
        return import_module("apac.deform.kernels")
    except Exception as error:  # a numba that does not fit its numpy or Python fails in many ways
        logging.getLogger("apac").warning("deforming by torch, which is slower: numba cannot be used (%s).", error)
        return None


def by_tiles(apply: Callable[[Tensor, Any], Tensor], images: Tensor, parameters: Any) -> Tensor:
    """apply(images, parameters), on the CPU by tiles of images that the threads share."""
    size = min(max(-(-len(images) // torch.get_num_threads()), TILE[0]), TILE[1])
    if len(images) <= size or kernels(images, parameters) is None:
        return apply(images, parameters)
    shared = trees.size(parameters) == 1

    def work(start: int) -> Tensor:
        tile = slice(start, start + size)
        return apply(images[tile], parameters if shared else trees.rows(parameters, tile))

    with worker_pool() as threads:
        return torch.cat(list(threads.map(work, range(0, len(images), size))))
