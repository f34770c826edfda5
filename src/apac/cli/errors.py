"""Expected errors end in one sentence: exit status 2 for bad input or a full disk, 130 for Ctrl-C, no traceback."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import typer

from apac.errors import ApacError, Interrupted

BAD_INPUT = 2
INTERRUPTED = 130  # 128 + SIGINT, as in shells

# Arguments in messages of the library that are options of the command.
FLAGS = re.compile(r"\b(resume|overwrite)=True")
VALUES = re.compile(
    r"\b(epochs|batch_size|learning_rate|weight_decay|ema_decay|validation_fraction|on_unreadable|seed)="
    r'"?([^\s",;)]+)"?'
)
ROOT_OPTIONS = ("--threads", "--import", "--version")


def print_error(sentence: str) -> None:
    print(f"apac: {sentence}", file=sys.stderr)


def in_options(message: str) -> str:
    """Replace the arguments in a message of the library by options."""
    message = FLAGS.sub(r"--\1", message)
    return VALUES.sub(lambda match: f"--{match[1].replace('_', '-')} {match[2]}", message)


def handle_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command so that expected errors end in one sentence and an exit status."""

    @functools.wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except (KeyboardInterrupt, Interrupted) as error:
            _exit(in_options(str(error)) or "interrupted; no incomplete file is left.", INTERRUPTED)
        except ApacError as error:
            _exit(in_options(str(error)), BAD_INPUT)
        except BrokenPipeError:
            raise  # the reader of the output has closed it, for example `head`; `run_app` ends quietly
        except OSError as error:
            _exit(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}.", BAD_INPUT)

    return wrapped


def _exit(sentence: str, status: int) -> NoReturn:
    print_error(sentence)
    raise typer.Exit(status)


def run_app(app: typer.Typer) -> None:
    """Run the command line and print usage errors in one line instead of a box."""
    try:
        status = app(prog_name="apac", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(status)
    except KeyboardInterrupt:  # outside of a command, for example during an import
        print_error("interrupted.")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # Python would report the closed pipe when it flushes the rest of the output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        # typer has no public base class of its usage errors; they are the ones with these two attributes.
        context, message = getattr(error, "ctx", None), getattr(error, "format_message", None)
        if context is None or message is None:
            raise
        if text := message().strip().rstrip("."):  # empty if the help was printed
            print_error(f"{text[:1].lower()}{text[1:]}; {_hint(text, context.command_path)}.")
        sys.exit(BAD_INPUT)


def _hint(text: str, command: str) -> str:
    misplaced = [option for option in ROOT_OPTIONS if f"option: {option}" in text]
    return f"{misplaced[0]} precedes the command, see apac --help" if misplaced else f"see {command} --help"
