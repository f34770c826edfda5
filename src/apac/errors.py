"""The exceptions that the package raises. Any other exception is a bug."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class ApacError(Exception):
    """Base class of the exceptions of this package. The message states the problem and how to fix it.

    >>> import apac
    >>> issubclass(apac.InputError, apac.ApacError)
    True
    """

    agreed = False  # whether all ranks of a process group raise the same error


class InputError(ApacError, ValueError):
    """Invalid argument, file or data set.

    >>> import apac
    >>> try:
    ...     apac.FixedPasses(0)
    ... except apac.InputError as error:
    ...     print("refused")
    refused
    """


class TrainingError(ApacError, RuntimeError):
    """Training cannot continue, for example because the loss is NaN.

    >>> import apac
    >>> issubclass(apac.TrainingError, RuntimeError)
    True
    """


class StorageError(ApacError, OSError):
    """A file or folder cannot be read or written.

    >>> import apac
    >>> str(apac.StorageError("the disk is full."))
    'the disk is full.'
    """


class Interrupted(ApacError):
    """The computation was stopped on request. Completed work is saved."""


class RankError(ApacError, RuntimeError):
    """Another rank of the process group has ended."""


def missing(package: str, extra: str) -> InputError:
    """Return the error for an optional package that is not installed."""
    return InputError(f"{package} is not installed; run: pip install 'augmented-pattern-classification[{extra}]'")


def require(module: str, *, extra: str) -> Any:
    """Import a module of an optional package.

    Raises InputError if it is not installed; the message contains the command that installs the extra.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise missing(module.partition(".")[0], extra) from error
