"""Independent random generators from a seed and a counter. No other module creates or seeds generators."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from threading import RLock
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from apac.errors import InputError

_MASK_32_BITS = 0xFFFFFFFF
Bits = TypeVar("Bits", int, Tensor)
_global_generators_lock = RLock()


def _after_fork() -> None:
    """Forget that a thread of the other process held the lock."""
    global _global_generators_lock
    _global_generators_lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def generator(seed: int, stream: str, counter: int) -> torch.Generator:
    """Return a generator that depends only on (seed, stream, counter).

    The random numbers of pass m or training step t are addressed by name, so they do not depend on earlier draws.
    Generators are on the CPU, so that results do not depend on the device.

    >>> import torch
    >>> first, again = (torch.rand(2, generator=generator(0, "pass", 7)) for _ in range(2))
    >>> torch.equal(first, again)
    True
    """
    if not 0 <= counter <= _MASK_32_BITS:
        raise InputError(f"the counter of a random stream must be between 0 and {_MASK_32_BITS}, got {counter}.")
    offset, mask = _stream_constants(seed, stream)
    # torch's CPU generator uses 32 bits of a seed, too few for a hash: 16,384 hashed seeds collide in 3 % of all
    # runs. A bijection of the counter never repeats within a stream.
    return torch.Generator().manual_seed(scramble((counter + offset) & _MASK_32_BITS) ^ mask)


@lru_cache(maxsize=64)
def _stream_constants(seed: int, stream: str) -> tuple[int, int]:
    digest = hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def scramble(x: Bits) -> Bits:
    """Apply a bijection of 32-bit integers that decorrelates neighbors (Wellons' lowbias32). Tensors are int64."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK_32_BITS
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK_32_BITS
    return x ^ (x >> 16)


@contextmanager
def seeding() -> Iterator[Callable[[int], None]]:
    """Yield a function that seeds the global generators of torch, numpy and Python, for code that draws from them.

    The generators are restored on exit. Only one thread at a time can be inside the context.
    """

    # torch.manual_seed also visits the generators of accelerators, which takes 100 times as long.
    seed_torch = torch.manual_seed if _has_accelerator() else torch.default_generator.manual_seed

    def seed_all(seed: int) -> None:
        seed_torch(seed)
        # Two words: from a single number numpy and torch would produce the same stream of random bits.
        np.random.seed([seed & _MASK_32_BITS, seed >> 32])
        random.seed(seed)

    with _global_generators_lock, torch.random.fork_rng() if _has_accelerator() else _restored_torch():
        numpy_state, python_state = np.random.get_state(), random.getstate()
        try:
            yield seed_all
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)


@lru_cache(maxsize=1)
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()


@contextmanager
def _restored_torch() -> Iterator[None]:
    before = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(before)


def numpy_and_python_generators(seed: int) -> tuple[np.random.Generator, random.Random]:
    """Return generators of numpy and Python, with independent streams, for libraries that take them as arguments."""
    return np.random.default_rng(seed), random.Random(scramble(seed & _MASK_32_BITS) ^ (seed >> 32))


@contextmanager
def seeded_torch(seed: int, stream: str, counter: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's global generators of the CPU and the device with (seed, stream, counter), and restore them on exit.

    Use it in hot loops: `seeding` covers more generators and takes ten times as long.
    """
    number = generator(seed, stream, counter).initial_seed()
    with _global_generators_lock, ExitStack() as stack:
        if device is not None and device.type != "cpu":
            stack.enter_context(torch.random.fork_rng([device], device_type=device.type))
            torch.get_device_module(device).manual_seed(number)
        stack.enter_context(_restored_torch())
        torch.default_generator.manual_seed(number)
        yield
