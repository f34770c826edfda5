"""Run a deformation with torch instead of the CPU kernels, or with another number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

import apac
from apac.deform.cpu import torch_path


def apply_by_torch(u: apac.Deformation, images: Tensor, parameters: object) -> Tensor:
    with torch_path():
        return u.apply(images, parameters)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
