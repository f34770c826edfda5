"""A target: seeds that this project makes itself, and a function that loads a mutated one.

Loading returns or raises ApacError, whose message is one short line. Everything else is a finding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from torch import nn

from fuzz.mutate import mutate_bytes

SHAPE = (1, 4, 4)
IMAGES = torch.linspace(0, 1, 32).view(2, *SHAPE)


@dataclass(frozen=True)
class Target:
    seeds: tuple[bytes, ...]
    load: Callable[[bytes], object]
    mutate: Callable[[bytes, Random], bytes] = mutate_bytes


def network() -> nn.Module:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
    return layers.eval()


def in_file(path: Path, mutate: Callable[[bytes, Random], bytes], load: Callable[[], object]) -> Target:
    """Return the target that writes a mutated file among the other files of a folder, and loads them."""
    original = path.read_bytes()

    def write_and_load(data: bytes) -> None:
        path.write_bytes(data)
        try:
            load()
        finally:
            path.write_bytes(original)

    return Target((original,), write_and_load, mutate)
