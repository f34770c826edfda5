"""Validation of arguments.

Most functions check one field of a frozen dataclass and convert it to a Python number, so that equal values print,
compare and serialize identically whatever their original type.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import unicodedata
from collections import Counter
from collections.abc import Sequence
from io import BufferedReader
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from apac import limits
from apac.errors import InputError

MAX_INTEGER = 2**63 - 1  # of torch


def validate_number(
    owner: Any, name: str, *, minimum: float = -math.inf, maximum: float = math.inf, below: float = math.inf
) -> None:
    """Require a finite number with minimum <= number <= maximum and number < below."""
    value = getattr(owner, name)
    number = to_float(value)
    if not (math.isfinite(number) and minimum <= number <= maximum and number < below):
        raise InputError(
            f"the {name} of {_describe(owner)} must be a number{_bounds(minimum, maximum, below)}, got {quoted(value)}."
        )
    object.__setattr__(owner, name, number)


def validate_positive(owner: Any, name: str) -> None:
    """Require a finite number above 0."""
    value = getattr(owner, name)
    number = to_float(value)
    if not 0 < number < math.inf:
        raise InputError(f"the {name} of {_describe(owner)} must be a number above 0, got {quoted(value)}.")
    object.__setattr__(owner, name, number)


def validate_probability(owner: Any, name: str) -> None:
    """Require a number strictly between 0 and 1."""
    value = getattr(owner, name)
    number = to_float(value)
    if not 0 < number < 1:
        raise InputError(f"the {name} of {_describe(owner)} must be a number above 0 and below 1, got {quoted(value)}.")
    object.__setattr__(owner, name, number)


def validate_integer(owner: Any, name: str, *, minimum: float = -math.inf, maximum: int = MAX_INTEGER) -> None:
    """Require an integer with minimum <= integer <= maximum."""
    value = getattr(owner, name)
    fits = isinstance(value, Integral) and not isinstance(value, bool)
    if not fits or not max(minimum, -MAX_INTEGER) <= int(value) <= maximum:
        bounds = f" of at least {minimum:g}" if math.isfinite(minimum) else ""
        if fits and int(value) > maximum:
            bounds = f" of at most {maximum:,}"
        raise InputError(f"the {name} of {_describe(owner)} must be an integer{bounds}, got {quoted(value)}.")
    object.__setattr__(owner, name, int(value))


def validate_reference_size(owner: Any) -> None:
    """Require `reference_size` to be None or an integer of at least 1."""
    if owner.reference_size is not None:
        validate_integer(owner, "reference_size", minimum=1, maximum=limits.REFERENCE_SIZE)


def validate_range(owner: Any, name: str, *, minimum: float, maximum: float) -> None:
    """Require a pair (low, high) of numbers with minimum <= low <= high <= maximum."""
    value = getattr(owner, name)
    pair = tuple(map(to_float, value)) if isinstance(value, tuple | list) else ()
    if not (len(pair) == 2 and minimum <= pair[0] <= pair[1] <= maximum):
        raise InputError(
            f"the {name} of {_describe(owner)} must be a range (low, high) with {minimum:g} <= low <= high <= "
            f"{maximum:g}, got {quoted(value)}."
        )
    object.__setattr__(owner, name, pair)


def validate_padding(owner: Any) -> None:
    """Require `padding` to be "edge" or a background value."""
    if isinstance(owner.padding, str) and owner.padding == "edge":
        return
    if not abs(to_float(owner.padding)) <= limits.ABS_VALUE:
        raise InputError(
            f'the padding of {_describe(owner)} must be "edge" or a background value, got {quoted(owner.padding)}.'
        )
    object.__setattr__(owner, "padding", float(owner.padding))


def validate_path(name: str, value: Any) -> Path:
    """Return an argument as a path; raise InputError if it is not a string or a path."""
    if not isinstance(value, str | os.PathLike):
        raise InputError(f"{name} must be a path, a string or a pathlib.Path, got {quoted(value)}.")
    return Path(value)


def validate_strength(strength: Any) -> float:
    """Return the strength of a deformation as a float."""
    number = to_float(strength)
    if not 0 <= number <= limits.FACTOR:
        raise InputError(
            f"the strength of a deformation must be a number between 0 and {limits.FACTOR:g}, got {quoted(strength)}."
        )
    return number


def validate_image_shape(shape: Any, max_side: int | None = None) -> tuple[int, int, int]:
    """Return the shape (C, H, W) of an image; raise InputError if it is not one, or too large to compute with."""
    numbers = tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else ()
    if len(numbers) != 3 or not all(type(number) is int and number >= 1 for number in numbers):
        raise InputError(f"the shape of an image must be three integers (C, H, W) of at least 1, got {quoted(shape)}.")
    channels, height, width = numbers
    if channels * height * width > limits.IMAGE_VALUES or (max_side and max(height, width) > max_side):
        sides = f", and at most {max_side:,} pixels a side" if max_side else ""
        raise InputError(
            f"an image may have at most {limits.IMAGE_VALUES:,} values{sides}, got "
            f"{' × '.join(quoted(number) for number in numbers)}; use smaller images."
        )
    return channels, height, width


def validate_class_names(names: Any) -> tuple[str, ...]:
    """Return the names of classes; raise InputError for names that cannot be printed on one line."""
    if not isinstance(names, Sequence) or isinstance(names, str) or not 1 <= len(names) <= limits.CLASSES:
        raise InputError(f"the classes must be a list of 1 to {limits.CLASSES:,} names, got {quoted(names)}.")
    for name in names:
        if not isinstance(name, str) or len(name) > limits.CLASS_NAME or not _is_printable(name):
            raise InputError(
                f"the name of a class must be a text of at most {limits.CLASS_NAME:,} characters without control "
                f"characters, got {quoted(name)}; rename it."
            )
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise InputError(f"two classes have the name {quoted(twice)}; rename one.")
    return tuple(names)


def _is_printable(text: str) -> bool:
    """Return whether a text is valid Unicode without control characters. Joiners, which many scripts need, are fine."""
    return text.isprintable() or not any(unicodedata.category(character) in ("Cc", "Cs") for character in text)


def parse_json(content: bytes | str, *, images: int = 0) -> Any:
    """Return the value of a JSON text. Raises ValueError if it is not valid, too large or too deep.

    A text that describes a number of images may be longer for each of them.
    """
    data = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    if len(data) > (bytes_allowed := json_bytes(images)):
        raise ValueError(f"it has more than {bytes_allowed >> 20} MB")
    values = limits.JSON_VALUES + images * limits.IMAGE_JSON_VALUES
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > values:
        raise ValueError(f"it has more than {values:,} values")
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if measure_json(value)[0] > limits.JSON_DEPTH:
        raise ValueError(f"it is nested more than {limits.JSON_DEPTH} levels deep")
    return value


def json_bytes(images: int = 0) -> int:
    """Return how many bytes a JSON text may have that describes a number of images."""
    return limits.JSON_BYTES + images * limits.IMAGE_JSON_BYTES


def measure_json(value: Any) -> tuple[int, int]:
    """Return how deep lists and objects are nested, up to one above the limit, and the number of objects."""
    depth = objects = 0
    level = [value]
    while depth <= limits.JSON_DEPTH:  # not by recursion, which has a limit of its own
        level = [node for node in level if isinstance(node, list | dict)]
        if not level:
            break
        depth += 1
        objects += sum(isinstance(node, dict) for node in level)
        level = [child for node in level for child in (node.values() if isinstance(node, dict) else node)]
    return depth, objects


def count_objects(value: Any, keys: frozenset[str]) -> int:
    """Return the number of JSON objects in a value that have one of these keys."""
    pending, count = [value], 0
    while pending:
        node = pending.pop()
        if isinstance(node, dict | list):
            count += isinstance(node, dict) and not keys.isdisjoint(node)
            pending.extend(node.values() if isinstance(node, dict) else node)
    return count


def quoted(value: Any) -> str:
    """Return the repr of a value, shortened, for an error message."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of more than 4,300 digits
        text = f"a very large {type(value).__name__}"
    return shortened(text)


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file to read its bytes; raise OSError if it is no regular file: a pipe or a device may never end."""
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return open(number, "rb")


def shortened(message: object, max_length: int = limits.QUOTED) -> str:
    """Return a message of another library, or another text, on one line and with at most this many characters."""
    text = " ".join(str(message).split()).rstrip(".")
    return text if len(text) <= max_length else f"{text[:max_length]}…"


def to_float(value: Any) -> float:
    """Return the value as a float, or NaN, which fails every comparison, if it is not a number."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # of an integer
        return math.nan


def _describe(owner: Any) -> str:
    name = type(owner).__name__
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"


def _bounds(minimum: float, maximum: float, below: float) -> str:
    if math.isfinite(maximum):
        return f" between {minimum:g} and {maximum:g}"
    if math.isfinite(below):
        return f" of at least {minimum:g} and below {below:g}"
    return f" of at least {minimum:g}" if math.isfinite(minimum) else ""
