"""Validation of arguments.

Most functions check one field of a frozen dataclass and convert it to a Python number, so that equal values print,
compare and serialize identically whatever their original type.
"""

from __future__ import annotations

import math
import os
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from apac.errors import InputError


def validate_number(
    owner: Any, name: str, *, minimum: float = -math.inf, maximum: float = math.inf, below: float = math.inf
) -> None:
    """Require a finite number with minimum <= number <= maximum and number < below."""
    value = getattr(owner, name)
    number = _to_float(value)
    if not (math.isfinite(number) and minimum <= number <= maximum and number < below):
        raise InputError(
            f"the {name} of {_describe(owner)} must be a number{_bounds(minimum, maximum, below)}, got {value!r}."
        )
    object.__setattr__(owner, name, number)


def validate_positive(owner: Any, name: str) -> None:
    """Require a finite number above 0."""
    value = getattr(owner, name)
    number = _to_float(value)
    if not 0 < number < math.inf:
        raise InputError(f"the {name} of {_describe(owner)} must be a number above 0, got {value!r}.")
    object.__setattr__(owner, name, number)


def validate_probability(owner: Any, name: str) -> None:
    """Require a number strictly between 0 and 1."""
    value = getattr(owner, name)
    number = _to_float(value)
    if not 0 < number < 1:
        raise InputError(f"the {name} of {_describe(owner)} must be a number above 0 and below 1, got {value!r}.")
    object.__setattr__(owner, name, number)


def validate_integer(owner: Any, name: str, *, minimum: float = -math.inf) -> None:
    """Require an integer of at least `minimum`."""
    value = getattr(owner, name)
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < minimum:
        bounds = f" of at least {minimum:g}" if math.isfinite(minimum) else ""
        raise InputError(f"the {name} of {_describe(owner)} must be an integer{bounds}, got {value!r}.")
    object.__setattr__(owner, name, int(value))


def validate_reference_size(owner: Any) -> None:
    """Require `reference_size` to be None or an integer of at least 1."""
    if owner.reference_size is not None:
        validate_integer(owner, "reference_size", minimum=1)


def validate_range(owner: Any, name: str, *, minimum: float) -> None:
    """Require a pair (low, high) of numbers with minimum <= low <= high."""
    value = getattr(owner, name)
    pair = tuple(map(_to_float, value)) if isinstance(value, tuple | list) else ()
    if not (len(pair) == 2 and minimum <= pair[0] <= pair[1] < math.inf):
        raise InputError(
            f"the {name} of {_describe(owner)} must be a range (low, high) with {minimum:g} <= low <= high, "
            f"got {value!r}."
        )
    object.__setattr__(owner, name, pair)


def validate_padding(owner: Any) -> None:
    """Require `padding` to be "edge" or a finite background value."""
    if owner.padding == "edge":
        return
    if not math.isfinite(_to_float(owner.padding)):
        raise InputError(
            f'the padding of {_describe(owner)} must be "edge" or a background value, got {owner.padding!r}.'
        )
    object.__setattr__(owner, "padding", float(owner.padding))


def validate_path(name: str, value: Any) -> Path:
    """Return an argument as a path; raise InputError if it is not a string or a path."""
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"{name} must be a path, a string or a pathlib.Path, got {value!r}.")
    return Path(value)


def _to_float(value: Any) -> float:
    """Return the value as a float, or NaN, which fails every comparison, if it is not a number."""
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan


def _describe(owner: Any) -> str:
    name = type(owner).__name__
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"


def _bounds(minimum: float, maximum: float, below: float) -> str:
    if math.isfinite(maximum):
        return f" between {minimum:g} and {maximum:g}"
    if math.isfinite(below):
        return f" of at least {minimum:g} and below {below:g}"
    return f" of at least {minimum:g}" if math.isfinite(minimum) else ""
