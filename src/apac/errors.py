"""The exceptions that apac raises on purpose. Anything else that escapes is a defect."""


class ApacError(Exception):
    """Base class of the exceptions of this package."""


class InputError(ApacError, ValueError):
    """An argument is wrong. The message says what, what was expected and what to do."""


class TrainingError(ApacError, RuntimeError):
    """Training cannot continue, for example because the loss is not finite."""


class StorageError(ApacError, OSError):
    """A file cannot be written or read."""


class Interrupted(ApacError):
    """The caller asked a computation to stop before its end. What is done so far is kept."""
