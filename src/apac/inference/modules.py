"""The modules behind a callable."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType
from typing import Any

from torch import nn

DEPTH = 3  # references to follow, for example from a partial to its function to a variable of it


def modules_of(network: Any, depth: int = DEPTH) -> list[nn.Module]:
    """Return the modules that a callable refers to directly.

    These are the callable itself, the variables of a function, the object of a method and its attributes, the arguments
    of a `functools.partial` and the function that a decorator wraps. Modules in containers such as lists are ignored.
    """
    if isinstance(network, nn.Module):
        return [network]
    if not depth:
        return []
    return [module for value in _references(network) for module in modules_of(value, depth - 1)]


def _references(value: Any) -> Iterator[Any]:
    if isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif inspect.ismethod(value):
        yield from (value.__self__, value.__func__)
    elif inspect.isfunction(value):
        yield from (value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__)
        for cell in value.__closure__ or ():
            with suppress(ValueError):  # a variable without a value yet
                yield cell.cell_contents
        yield getattr(value, "__wrapped__", None)
    elif not isinstance(value, type | ModuleType):
        yield from getattr(value, "__dict__", {}).values()
