"""What can be done with a draw of Θ of any kind: count it, pick rows, join, move.

A draw is a frozen dataclass whose fields are tensors with a leading dimension n, or further draws of the same n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from apac.errors import InputError

Draw = TypeVar("Draw")


def size(draw: Any) -> int:
    """n: how many Θ the draw holds. A draw with no tensor at all, the identity's, counts 1: it serves any image."""
    leaves: list[Tensor] = []
    _map(lambda leaf: leaves.append(leaf) or leaf, draw)  # type: ignore[func-returns-value]
    return len(leaves[0]) if leaves else 1


def rows(draw: Draw, index: Tensor | slice) -> Draw:
    """The Θ that `index` selects."""
    return _map(lambda leaf: leaf[index], draw)


def concatenate(draws: Sequence[Draw]) -> Draw:
    """Draws of one kind as a single draw."""
    return _map(lambda *leaves: torch.cat(leaves), *draws)


def to_device(draw: Draw, device: torch.device) -> Draw:
    """The same Θ on another device."""
    return _map(lambda leaf: leaf.to(device), draw)


def _map(function: Callable[..., Tensor], *draws: Draw) -> Draw:
    first: Any = draws[0]
    if isinstance(first, Tensor):
        return function(*draws)  # type: ignore[return-value]
    if isinstance(first, tuple):
        return tuple(_map(function, *parts) for parts in zip(*draws, strict=True))  # type: ignore[return-value]
    if is_dataclass(first) and not isinstance(first, type):
        values = {f.name: _map(function, *(getattr(draw, f.name) for draw in draws)) for f in fields(first)}
        return type(first)(**values)  # type: ignore[return-value]
    raise InputError(f"parameters must be tensors, or dataclasses and tuples of them, got {type(first).__name__}.")
