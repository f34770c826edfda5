"""What can be done with a draw of Θ of any kind, and with whatever else is known of n images: count, pick rows, join,
move.

It is a frozen dataclass whose fields are tensors with a leading dimension n, further such dataclasses of the same n, or
numbers that all n share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from apac.errors import InputError

Draw = TypeVar("Draw")


def size(draw: Any) -> int:
    """n: how many Θ the draw holds. A draw with no tensor at all, the identity's, counts 1: it serves any image."""
    leaf = _first(draw)
    return 1 if leaf is None else len(leaf)


def rows(draw: Draw, index: Tensor | slice) -> Draw:
    """The Θ that `index` selects."""
    return _map(lambda leaf: leaf[index], draw)


def concatenate(draws: Sequence[Draw]) -> Draw:
    """Draws of one kind, which agree in their numbers, as a single draw."""
    return _map(lambda *leaves: torch.cat(leaves), *draws)


def to_device(draw: Draw, device: torch.device) -> Draw:
    """The same Θ on another device."""
    leaf = _first(draw)
    return draw if leaf is None or leaf.device == device else _map(lambda leaf: leaf.to(device), draw)


def requires_grad(draw: Any) -> bool:
    """Whether gradients are wanted of any of its tensors."""
    leaves: list[Tensor] = []
    _map(lambda leaf: leaves.append(leaf) or leaf, draw)  # type: ignore[func-returns-value]
    return any(leaf.requires_grad for leaf in leaves)


def _first(draw: Any) -> Tensor | None:
    """A tensor of the draw; they all have the same n and device."""
    if isinstance(draw, Tensor):
        return draw
    if isinstance(draw, int | float):
        return None
    if isinstance(draw, tuple):
        parts: Iterable[Any] = draw
    elif is_dataclass(draw) and not isinstance(draw, type):
        parts = (getattr(draw, f.name) for f in fields(draw))
    else:
        raise _not_a_draw(draw)
    return next((leaf for leaf in map(_first, parts) if leaf is not None), None)


def _map(function: Callable[..., Tensor], *draws: Draw) -> Draw:
    first: Any = draws[0]
    if isinstance(first, Tensor):
        return function(*draws)  # type: ignore[return-value]
    if isinstance(first, int | float):
        return first  # type: ignore[return-value]
    if isinstance(first, tuple):
        return tuple(_map(function, *parts) for parts in zip(*draws, strict=True))  # type: ignore[return-value]
    if is_dataclass(first) and not isinstance(first, type):
        values = {f.name: _map(function, *(getattr(draw, f.name) for draw in draws)) for f in fields(first)}
        return type(first)(**values)  # type: ignore[return-value]
    raise _not_a_draw(first)


def _not_a_draw(value: Any) -> InputError:
    kind = type(value).__name__
    return InputError(f"parameters must be tensors and numbers, or dataclasses and tuples of them, got {kind}.")
