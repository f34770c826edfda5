"""The one error for input that a person can correct."""


class InputError(ValueError):
    """Something given to apac is wrong; the message says what, what was expected and what to do.

    The command prints the message alone and exits with status 2. Everything else that is raised is a defect.
    """
