"""The sum of one tensor per rank: through memory that the ranks of one machine share, otherwise by a collective.

For two ranks and 405,000 gradients, those of cifar10-cnn, gloo takes about 4 ms and shared memory about 1 ms.
"""

from __future__ import annotations

import mmap
import os
import secrets
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from apac.distributed.ranks.group import Group, machine

TOKEN_BYTES = 64  # a cache line, so that the values after it are aligned
LARGEST = 128 << 20  # bytes of shared memory; every rank reads the rows of all ranks, so that a ring is faster beyond


class Exchange(ABC):
    """Sums of `values` numbers per rank. All ranks use it in the same order."""

    def __init__(self, group: Group, values: int, dtype: torch.dtype, device: torch.device) -> None:
        self.group, self.values, self.dtype, self.device = group, values, dtype, device

    def fits(self, values: int, dtype: torch.dtype, device: torch.device) -> bool:
        """Return whether this exchange is for tensors of this kind."""
        return (self.values, self.dtype, self.device) == (values, dtype, device)

    @property
    @abstractmethod
    def own(self) -> Tensor:
        """The tensor that this rank fills before the next sum."""

    @abstractmethod
    def sum(self) -> Tensor:
        """Return the sum of the tensors of all ranks, the same on each of them, valid until the next sum."""


def exchange(group: Group, values: int, dtype: torch.dtype, device: torch.device) -> Exchange:
    """Return an exchange through shared memory if all ranks of the group are on one machine, else by a collective."""
    size = 2 * group.size * values * dtype.itemsize
    if device.type == "cpu" and size <= LARGEST:
        memory = _shared_memory(group, size)
        if memory is not None:
            return _SharedMemory(group, values, dtype, device, memory)
    return _Collective(group, values, dtype, device)


class _Collective(Exchange):
    def __init__(self, group: Group, values: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(group, values, dtype, device)
        self._values = torch.empty(values, dtype=dtype, device=device)

    @property
    def own(self) -> Tensor:
        return self._values

    def sum(self) -> Tensor:
        return self.group.sum_(self._values)


class _SharedMemory(Exchange):
    """Two tables in turn, with a row for each rank, and one barrier per sum.

    A rank that fills a table has passed the barrier of the sum before, which all ranks enter after they have read the
    sum before that, in the same table.
    """

    def __init__(self, group: Group, values: int, dtype: torch.dtype, device: torch.device, memory: mmap.mmap) -> None:
        super().__init__(group, values, dtype, device)
        self._tables = torch.frombuffer(memory, dtype=dtype, offset=TOKEN_BYTES).view(2, group.size, values)
        self._turn = 0
        self._total = torch.empty(values, dtype=dtype)

    @property
    def own(self) -> Tensor:
        return self._tables[self._turn, self.group.rank]

    def sum(self) -> Tensor:
        self.group.sum_(torch.zeros(1))  # the barrier, which fails if a rank is lost
        torch.sum(self._tables[self._turn], 0, out=self._total)
        self._turn = 1 - self._turn
        return self._total


def _shared_memory(group: Group, size: int) -> mmap.mmap | None:
    """Return `size` bytes after a token that all ranks share, or None if they cannot.

    The memory has no name in a file system, so nothing is left when a rank is killed. The other ranks open it by the
    process and the descriptor of the first one, and know by the token that it is theirs.
    """
    size += TOKEN_BYTES
    token = secrets.token_bytes(TOKEN_BYTES)
    descriptor = _created(size, token) if group.first else None
    offers = group.gather((machine(), None if descriptor is None else f"/proc/{os.getpid()}/fd/{descriptor}", token))
    host, path, token = offers[0]
    memory = _opened(path, token, size) if path is not None and host == machine() else None
    everywhere = all(group.gather(memory is not None))  # after which the first rank may close its descriptor
    if descriptor is not None:
        os.close(descriptor)
    return memory if everywhere else None


def _created(size: int, token: bytes) -> int | None:
    """Return a descriptor of memory that begins with the token, or None if none is available."""
    if not hasattr(os, "memfd_create"):
        return None
    try:
        descriptor = os.memfd_create("apac gradients")
    except OSError:
        return None
    try:
        os.truncate(descriptor, size)
        os.pwrite(descriptor, token, 0)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _opened(path: str, token: bytes, size: int) -> mmap.mmap | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_size != size or os.pread(descriptor, TOKEN_BYTES, 0) != token:
            return None
        return mmap.mmap(descriptor, size)
    except OSError:
        return None
    finally:
        os.close(descriptor)
