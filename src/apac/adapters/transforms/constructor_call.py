"""Transforms as JSON: the class and the constructor arguments, read from the attributes of an object.

Only classes of the given modules are described and built, and only from modules that this package names: a file never
chooses what is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from apac import limits
from apac.errors import InputError, require
from apac.validation import quoted, shortened

CONTAINERS = {"torch.nn.Sequential": nn.Sequential}  # of every library
# Arguments that kornia keeps under another name.
ALIASES = {
    "transformation_matrix_mode": "_transformation_matrix_arg",
    "order": "_fixed_order",
    "salt_vs_pepper": "salt_and_pepper",
}
REMEDY = "use transforms of the library with numbers as arguments, or train without a folder for the run"
Modules = Sequence[str]


def describe(value: Any, modules: Modules) -> Any:
    """Return a transform, or an argument of one, as JSON; `modules` are those whose classes may occur."""
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, list | nn.ModuleList):
        return [describe(item, modules) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [describe(item, modules) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[describe(key, modules), describe(item, modules)] for key, item in value.items()]}
    if isinstance(value, Tensor) and value.ndim == 0:
        return value.item()
    if isinstance(value, Tensor) and value.numel() <= 1000:
        return {"tensor": value.tolist(), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    path = _path(type(value), modules)
    if path is None:
        name = getattr(value, "__name__", type(value).__name__)
        raise InputError(f"{name} is not a transform of {modules[0].partition('.')[0]}; {REMEDY}.")
    if isinstance(value, Enum):
        return {"enum": path, "name": value.name}
    payload = {"class": path, **_arguments(value, modules)}
    if repr(build(payload, modules)) != repr(value):
        raise InputError(f"{type(value).__name__} does not keep all of its constructor arguments; {REMEDY}.")
    return payload


def limited(payload: Any) -> Any:
    """Return a stored transform; raise InputError if it has too many parts, or numbers that may cost too much.

    What a library does with its arguments is not known here, so that all of them have the same limit.
    """
    pending, parts = [payload], 0
    while pending:
        value = pending.pop()
        if isinstance(value, dict | list):
            parts += isinstance(value, dict)
            pending.extend(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, int | float) and not abs(value) <= limits.TRANSFORM_NUMBER:
            raise InputError(
                f"a stored transform may have numbers up to {limits.TRANSFORM_NUMBER:,}, got {quoted(value)}; pass "
                f"this transform to a Classifier instead of storing it."
            )
    if parts > limits.TRANSFORM_PARTS:
        raise InputError(
            f"a stored transform may have {limits.TRANSFORM_PARTS} parts, got {parts:,}; pass it to a Classifier."
        )
    return payload


def build(payload: Any, modules: Modules) -> Any:
    """Return what `describe` described. Raises InputError if the classes are of other modules or do not fit."""
    if isinstance(payload, list):
        return [build(item, modules) for item in payload]
    if not isinstance(payload, dict):
        return payload
    match payload:
        case {"tuple": list(items)}:
            return tuple(build(item, modules) for item in items)
        case {"dict": list(items)}:
            return {build(key, modules): build(item, modules) for key, item in items}
        case {"tensor": values, "dtype": str(dtype)}:
            return torch.tensor(values, dtype=_dtype(dtype))
        case {"dtype": str(dtype)}:
            return _dtype(dtype)
        case {"enum": str(path), "name": str(name)}:
            return _class(path, modules, enum=True)[name]
        case {"class": str(path), "parts": list(parts), "arguments": dict(arguments)}:
            kind = _class(path, modules, enum=False)
            named = {name: build(item, modules) for name, item in arguments.items()}
            try:
                return kind(*(build(part, modules) for part in parts), **named)
            except InputError:
                raise
            except Exception as error:  # libraries refuse arguments with many types of exceptions
                raise InputError(
                    f"{path} cannot be constructed from {quoted(arguments)}: {shortened(error)}; {REMEDY}."
                ) from error
    raise InputError(f"{quoted(payload)} does not describe a transform; train the run again.")


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"{quoted(name)} is not a dtype of torch; train the run again.")
    return dtype


def _path(kind: type, modules: Modules) -> str | None:
    """Return the path under which a class is found; None if it is not one of the modules'."""
    for path, container in CONTAINERS.items():
        if kind is container:
            return path
    for module in modules:
        if getattr(_import(module), kind.__name__, None) is kind:
            return f"{module}.{kind.__name__}"
    return None


def _class(path: str, modules: Modules, *, enum: bool) -> Any:
    if path in CONTAINERS and not enum:
        return CONTAINERS[path]
    module, _, name = path.rpartition(".")
    kind: Any = getattr(_import(module), name, None) if module in modules else None
    library = modules[0].partition(".")[0]
    # A module also holds functions, what it imports, and classes that are no transforms.
    fits = isinstance(kind, type) and kind.__module__.partition(".")[0] == library
    if not fits or not (issubclass(kind, Enum) if enum else "__call__" in dir(kind) and not issubclass(kind, Enum)):
        raise InputError(
            f"{quoted(path)} is not a transform of {library}; a run stores transforms of the library only."
        )
    return kind


def _import(module: str) -> Any:
    try:
        return require(module, extra="adapters")
    except RuntimeError as error:  # torchvision fails in this way without its operators
        library = module.partition(".")[0]
        raise InputError(
            f"{library} cannot be imported ({error}); install the build of {library} that matches torch."
        ) from error


def _arguments(transform: Any, modules: Modules) -> dict[str, Any]:
    """Return the constructor arguments. Those that are kept nowhere are left to their defaults."""
    parts: list[Any] = []
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(type(transform)).parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            parts = [describe(child, modules) for child in transform.children()]
        elif parameter.kind is not parameter.VAR_KEYWORD:
            found, value = _find(transform, name)
            if found:
                arguments[name] = describe(value, modules)
            elif parameter.default is parameter.empty:
                raise InputError(f"{type(transform).__name__} does not keep its argument {name}; {REMEDY}.")
    return {"parts": parts, "arguments": arguments}


def _find(transform: Any, name: str) -> tuple[bool, Any]:
    """Look for an argument where the libraries keep it, and return whether it was found, and its value."""
    generator = getattr(transform, "_param_generator", None)  # of kornia
    for factor, key, *_ in getattr(generator, "samplers", ()):  # gamma as gamma_factor, r_shift_limit as r_shift
        if key.startswith(name) or name.startswith(key):
            return True, factor
    if name == "random_apply" and isinstance(getattr(transform, name, None), tuple):
        low, stop = transform.random_apply  # kornia has added 1 to the upper bound
        return True, (low, stop - 1)
    for owner in (transform, generator):
        for key in (name, f"_{name}", ALIASES.get(name, name)):
            if hasattr(owner, key) and not inspect.ismethod(getattr(owner, key)):
                return True, getattr(owner, key)
    flags = getattr(transform, "flags", None)
    return (True, flags[name]) if isinstance(flags, dict) and name in flags else (False, None)
