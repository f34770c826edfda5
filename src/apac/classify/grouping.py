"""What is known of n images: frozen dataclasses of tensors with a leading dimension n, of further such dataclasses, and
of numbers that are the same for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

Known = TypeVar("Known")


def keep(known: Known, rows: Tensor) -> Known:
    """What is known of some of the images."""
    return cast(Known, _map(lambda tensors: tensors[0][rows], [known]))


def join(groups: Sequence[Known]) -> Known:
    """What is known of the images of several groups, which agree in all else."""
    return cast(Known, _map(torch.cat, groups))


def _map(function: Callable[[list[Tensor]], Tensor], groups: Sequence[Any]) -> Any:
    first = groups[0]
    if isinstance(first, Tensor):
        return function(list(groups))
    if isinstance(first, int | float):
        return first
    each = {f.name: _map(function, [getattr(group, f.name) for group in groups]) for f in fields(first)}
    return replace(first, **each)
