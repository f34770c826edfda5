"""Operations on trees of tensors: count rows, select rows, concatenate, move between devices.

A tree is a tensor, a number, or a tuple or frozen dataclass of trees. All tensors of a tree have the same leading
dimension n; numbers are shared by all n rows. The parameters of a deformation are such a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from apac.errors import InputError

Tree = TypeVar("Tree")


def size(tree: Any) -> int:
    """Return the number of rows n. A tree without tensors, such as the parameters of the identity, has 1 row."""
    leaf = _first_tensor(tree)
    return 1 if leaf is None else len(leaf)


def rows(tree: Tree, index: Tensor | slice) -> Tree:
    """Return the rows that `index` selects."""
    return _map(lambda leaf: leaf[index], tree)


def concatenate(trees: Sequence[Tree]) -> Tree:
    """Concatenate trees of the same structure along the leading dimension. Numbers come from the first tree."""
    return _map(lambda *leaves: torch.cat(leaves), *trees)


def to_device(tree: Tree, device: torch.device) -> Tree:
    """Move the tensors of a tree to a device."""
    leaf = _first_tensor(tree)
    return tree if leaf is None or leaf.device == device else _map(lambda leaf: leaf.to(device), tree)


def requires_grad(tree: Any) -> bool:
    """Return whether any tensor of the tree requires gradients."""
    leaves: list[Tensor] = []
    _map(lambda leaf: leaves.append(leaf) or leaf, tree)  # type: ignore[func-returns-value]
    return any(leaf.requires_grad for leaf in leaves)


def _first_tensor(tree: Any) -> Tensor | None:
    if isinstance(tree, Tensor):
        return tree
    if isinstance(tree, int | float):
        return None
    if isinstance(tree, tuple):
        children: Iterable[Any] = tree
    elif is_dataclass(tree) and not isinstance(tree, type):
        children = (getattr(tree, f.name) for f in fields(tree))
    else:
        raise _not_a_tree(tree)
    return next((leaf for leaf in map(_first_tensor, children) if leaf is not None), None)


def _map(function: Callable[..., Tensor], *trees: Tree) -> Tree:
    first: Any = trees[0]
    if isinstance(first, Tensor):
        return function(*trees)  # type: ignore[return-value]
    if isinstance(first, int | float):
        return first  # type: ignore[return-value]
    if isinstance(first, tuple):
        return tuple(_map(function, *children) for children in zip(*trees, strict=True))  # type: ignore[return-value]
    if is_dataclass(first) and not isinstance(first, type):
        values = {f.name: _map(function, *(getattr(tree, f.name) for tree in trees)) for f in fields(first)}
        return type(first)(**values)  # type: ignore[return-value]
    raise _not_a_tree(first)


def _not_a_tree(value: Any) -> InputError:
    kind = type(value).__name__
    return InputError(f"parameters must be tensors and numbers, or dataclasses and tuples of them, got {kind}.")
