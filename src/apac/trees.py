"""Operations on trees of tensors: count rows, select rows, concatenate, move between devices.

A tree is a tensor, a number, or a tuple or frozen dataclass of trees. All tensors of a tree have the same leading
dimension n; numbers are shared by all n rows. The parameters of a deformation are such a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from apac.errors import InputError

Tree = TypeVar("Tree")


def size(tree: Any) -> int:
    """Return the number of rows n. A tree without tensors, such as the parameters of the identity, has 1 row."""
    leaf = _first_tensor(tree)
    return 1 if leaf is None else leaf.shape[0]  # faster than len


def rows(tree: Tree, index: Tensor | slice) -> Tree:
    """Return the rows that `index` selects."""
    return _map(lambda leaf: leaf[index], tree)


def repeat(tree: Tree, times: int) -> Tree:
    """Return all rows, `times` times in a row."""
    return tree if times == 1 else _map(lambda leaf: leaf.repeat(times, *[1] * (leaf.ndim - 1)), tree)


def concatenate(trees: Sequence[Tree]) -> Tree:
    """Concatenate trees of the same structure along the leading dimension. Numbers come from the first tree."""
    return _map(lambda *leaves: torch.cat(leaves), *trees)


def to_device(tree: Tree, device: torch.device) -> Tree:
    """Move the tensors of a tree to a device."""
    leaf = _first_tensor(tree)
    return tree if leaf is None or leaf.device == device else _map(lambda leaf: leaf.to(device), tree)


def requires_grad(tree: Any) -> bool:
    """Return whether any tensor of the tree requires gradients."""
    return tree.requires_grad if isinstance(tree, Tensor) else any(map(requires_grad, _children(tree)))


def bytes_of(tree: Any) -> int:
    """Return the memory that the tensors of a tree take."""
    return tree.nbytes if isinstance(tree, Tensor) else sum(map(bytes_of, _children(tree)))


def _first_tensor(tree: Any) -> Tensor | None:
    if isinstance(tree, Tensor):
        return tree
    for child in _children(tree):
        leaf = _first_tensor(child)
        if leaf is not None:
            return leaf
    return None


def _children(tree: Any) -> Sequence[Any]:
    if isinstance(tree, tuple):
        return tree
    if isinstance(tree, int | float):
        return ()
    kind: Any = type(tree)
    return [getattr(tree, name) for name in _field_names(kind)]


@lru_cache(maxsize=256)
def _field_names(kind: type) -> tuple[str, ...]:
    """Return the names of the fields, cached because `dataclasses.fields` is slow."""
    if not is_dataclass(kind):
        raise _not_a_tree(kind)
    return tuple(field.name for field in fields(kind))


def _map(function: Callable[..., Tensor], *trees: Tree) -> Tree:
    first: Any = trees[0]
    if isinstance(first, Tensor):
        return function(*trees)  # type: ignore[return-value]
    if isinstance(first, int | float):
        return first  # type: ignore[return-value]
    if isinstance(first, tuple):
        return tuple(_map(function, *children) for children in zip(*trees, strict=True))  # type: ignore[return-value]
    kind: Any = type(first)
    values = {name: _map(function, *(getattr(tree, name) for tree in trees)) for name in _field_names(kind)}
    return kind(**values)  # type: ignore[no-any-return]


def _not_a_tree(kind: type) -> InputError:
    return InputError(
        f"parameters must be tensors and numbers, or dataclasses and tuples of them, got {kind.__name__}."
    )
