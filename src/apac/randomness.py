"""Seed and counter to independent random generators; the only place that makes or seeds one."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from apac.errors import InputError

_32_BITS = 0xFFFFFFFF
Bits = TypeVar("Bits", int, Tensor)
_one_at_a_time = threading.RLock()  # may use the global generators


def generator(seed: int, stream: str, counter: int) -> torch.Generator:
    """A generator that depends on (seed, stream, counter) alone.

    Whoever needs the numbers of pass m or training step t asks for them by name, so nothing depends on what was drawn
    before. Generators live on the CPU: a result does not change with the device that applies it.
    """
    if not 0 <= counter <= _32_BITS:
        raise InputError(f"the counter of a random stream must be between 0 and {_32_BITS}, got {counter}.")
    offset, mask = _stream(seed, stream)
    # torch's CPU generator keeps 32 bits of a seed, too few to hash into: among 16,384 hashed seeds two would be
    # equal in 3 % of all runs. A bijection of the counter never repeats within a stream.
    return torch.Generator().manual_seed(scramble((counter + offset) & _32_BITS) ^ mask)


@lru_cache(maxsize=64)
def _stream(seed: int, stream: str) -> tuple[int, int]:
    digest = hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def scramble(x: Bits) -> Bits:
    """A bijection of 32-bit numbers, or of a tensor of them in 64, after which neighbors have nothing in common
    (Wellons' lowbias32)."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _32_BITS
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _32_BITS
    return x ^ (x >> 16)


@contextmanager
def seeding() -> Iterator[Callable[[int], None]]:
    """A function that seeds the global generators of torch, numpy and Python, for code that draws from them.

    They are as before in the end; one thread at a time may do so.
    """

    def seed_all(seed: int) -> None:
        torch.manual_seed(seed)
        np.random.seed([seed & _32_BITS, seed >> 32])  # numpy would draw as torch does from one number
        random.seed(seed)

    with _one_at_a_time, torch.random.fork_rng():
        before = np.random.get_state(), random.getstate()
        try:
            yield seed_all
        finally:
            np.random.set_state(before[0])
            random.setstate(before[1])


@contextmanager
def seeded_torch(seed: int, stream: str, counter: int) -> Iterator[None]:
    """Seed torch's global CPU generator by (seed, stream, counter), and restore it at the end.

    For code that is called very often: `seeding` takes ten times as long, because it covers more generators.
    """
    with _one_at_a_time:
        before = torch.get_rng_state()
        torch.default_generator.manual_seed(generator(seed, stream, counter).initial_seed())
        try:
            yield
        finally:
            torch.set_rng_state(before)
