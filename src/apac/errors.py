"""The errors that the package raises on purpose. Every other exception is a defect of the package."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class ApacError(Exception):
    """Base class of the errors below. The message says what is wrong, what is expected and what to do.

    >>> import apac
    >>> issubclass(apac.InputError, apac.ApacError)
    True
    """


class InputError(ApacError, ValueError):
    """An argument, a file or a data set that the caller can correct.

    >>> import apac
    >>> try:
    ...     apac.FixedPasses(0)
    ... except apac.InputError as error:
    ...     print("refused")
    refused
    """


class TrainingError(ApacError, RuntimeError):
    """Training that cannot continue, for example because the loss is NaN.

    >>> import apac
    >>> issubclass(apac.TrainingError, RuntimeError)
    True
    """


class StorageError(ApacError, OSError):
    """A file or folder that cannot be read or written.

    >>> import apac
    >>> str(apac.StorageError("the disk is full."))
    'the disk is full.'
    """


class Interrupted(ApacError):
    """A computation that was asked to stop before its end. What is done so far is kept."""


def missing(package: str, extra: str) -> InputError:
    """The error for an optional package that is not installed."""
    return InputError(f"{package} is not installed; run: pip install 'augmented-pattern-classification[{extra}]'")


def require(module: str, *, extra: str) -> Any:
    """Import a module of an optional package.

    Raises:
        InputError: if it is not installed; the message has the install command of the extra that brings it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise missing(module.partition(".")[0], extra) from error
