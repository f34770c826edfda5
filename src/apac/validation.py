"""Constructor arguments: checked once, and kept as plain numbers that print, compare and store."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from apac.errors import InputError


def validate_number(
    owner: Any, name: str, *, minimum: float = -math.inf, maximum: float = math.inf, below: float = math.inf
) -> None:
    """Make a field of a frozen dataclass a float within bounds."""
    value = getattr(owner, name)
    number = _float(value)
    if not (math.isfinite(number) and minimum <= number <= maximum and number < below):
        raise InputError(
            f"the {name} of {_named(owner)} must be a number{_bounds(minimum, maximum, below)}, got {value!r}."
        )
    object.__setattr__(owner, name, number)


def validate_positive(owner: Any, name: str) -> None:
    value = getattr(owner, name)
    number = _float(value)
    if not 0 < number < math.inf:
        raise InputError(f"the {name} of {_named(owner)} must be a number above 0, got {value!r}.")
    object.__setattr__(owner, name, number)


def validate_probability(owner: Any, name: str) -> None:
    """Make a field a float between 0 and 1, neither of them included."""
    value = getattr(owner, name)
    number = _float(value)
    if not 0 < number < 1:
        raise InputError(f"the {name} of {_named(owner)} must be a number above 0 and below 1, got {value!r}.")
    object.__setattr__(owner, name, number)


def validate_integer(owner: Any, name: str, *, minimum: float = -math.inf) -> None:
    value = getattr(owner, name)
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < minimum:
        bounds = f" of at least {minimum:g}" if math.isfinite(minimum) else ""
        raise InputError(f"the {name} of {_named(owner)} must be a whole number{bounds}, got {value!r}.")
    object.__setattr__(owner, name, int(value))


def validate_range(owner: Any, name: str, *, minimum: float) -> None:
    """Make a field a pair (low, high) of floats with minimum <= low <= high."""
    value = getattr(owner, name)
    pair = tuple(map(_float, value)) if isinstance(value, tuple | list) else ()
    if not (len(pair) == 2 and minimum <= pair[0] <= pair[1] < math.inf):
        raise InputError(
            f"the {name} of {_named(owner)} must be a range (low, high) with {minimum:g} <= low <= high, got {value!r}."
        )
    object.__setattr__(owner, name, pair)


def validate_padding(owner: Any) -> None:
    """Make `padding` a background value or "edge"."""
    if owner.padding == "edge":
        return
    if not math.isfinite(_float(owner.padding)):
        raise InputError(f'the padding of {_named(owner)} must be a background value or "edge", got {owner.padding!r}.')
    object.__setattr__(owner, "padding", float(owner.padding))


def _float(value: Any) -> float:
    """NaN, which is within no bounds, for what is no number."""
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan


def _named(owner: Any) -> str:
    name = type(owner).__name__
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"


def _bounds(minimum: float, maximum: float, below: float) -> str:
    if math.isfinite(maximum):
        return f" between {minimum:g} and {maximum:g}"
    if math.isfinite(below):
        return f" of at least {minimum:g} and below {below:g}"
    return f" of at least {minimum:g}" if math.isfinite(minimum) else ""
