"""Bad input, a full disk and Ctrl-C end in one sentence and exit status 2, never in a traceback."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import typer

from apac.errors import ApacError, Interrupted


def print_error(sentence: str) -> None:
    print(f"apac: {sentence}", file=sys.stderr)


def handle_errors(command: Callable[..., None]) -> Callable[..., None]:
    """A command that refuses handle_errors."""

    @functools.wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except (Interrupted, KeyboardInterrupt) as error:
            print_error(str(error) or "interrupted; nothing is half-written.")
            raise typer.Exit(130) from None
        except ApacError as error:
            print_error(str(error))
            raise typer.Exit(2) from None
        except BrokenPipeError:
            raise  # whoever read the output has enough; typer ends quietly
        except OSError as error:
            print_error(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}.")
            raise typer.Exit(2) from None

    return wrapped


def run_app(app: typer.Typer) -> None:
    """Run the command line, and say what is wrong with it without a box around it."""
    try:
        status = app(prog_name="apac", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(status)
    except BrokenPipeError:
        # Whoever read the output has enough. What is left of it goes nowhere, or Python would print_error at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        # typer has no public name for its errors; a wrong option or command is one with these two.
        context, message = getattr(error, "ctx", None), getattr(error, "format_message", None)
        if context is None or message is None:
            raise
        if said := message().strip().rstrip("."):  # nothing where the help was printed instead
            print_error(f"{said[:1].lower()}{said[1:]}; see {context.command_path} --help.")
        sys.exit(2)
