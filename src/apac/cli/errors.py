"""Expected errors print one sentence and no traceback. Exit status: 2 for errors, 130 for Ctrl-C."""

from __future__ import annotations

import errno
import functools
import io
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import typer

from apac.cli.ranks import rank, started_by_torchrun
from apac.cli.signals import ignore_signal, remember_interrupts, was_interrupted
from apac.errors import ApacError, Interrupted
from apac.serve.signals import INTERRUPTED

BAD_INPUT = 2
FULL = (errno.ENOSPC, errno.EDQUOT)

# Arguments in library messages that correspond to command-line options.
NAMES = (
    "epochs|batch_size|learning_rate|schedule|warmup|optimizer|tied|momentum|weight_decay|label_smoothing|"
    "ema_decay|precision|validation_fraction|normalization|size|fit|seed|on_unreadable|passes|error|limit|data|part_size"
)
FLAGS = re.compile(r"\b(resume|overwrite|whitened|freeze|stream)=True")
# Advice, not a path or an object that is named: after one of these words, or as the subject of a sentence.
VALUES = re.compile(
    rf"""(?:(?<=with )|(?<=use )|(?<=omit )|(?<= \()|^(?=\S+ (?:is for|is supported|leaves|holds out) ))"""
    rf"""({NAMES})=['"]?([^\s'",;)]+)['"]?"""
)
FIELDS = re.compile(r"\bthe (\w+) of an? (?:TrainConfig|Certified|FixedPasses)\b")
SUBJECTS = re.compile(rf"^({NAMES})(?= must be )")
# Clauses in library messages that mean nothing to the command line.
CLAUSES = (
    (re.compile(r": import (\S+) first, or pass network="), r"; start the command with apac --import \1"),
    (re.compile(r"pass network= instead"), "load the run from Python with apac.load"),
    (re.compile(r"pass a module of the same architecture as network="), "load the run from Python with apac.load"),
    (re.compile(r"pass one, or Compose\(\) for none"), "choose one by --deformation, or --plain for none"),
    (re.compile(r"import the module that defines it first"), "start the command with apac --import MODULE"),
    (re.compile(r"pass another folder as out="), "choose another folder by --out"),
    (re.compile(r"pass data="), "give a folder by --data"),
    (re.compile(r"raise max_pixels"), "classify it with --max-pixels"),
    (
        re.compile(r"pass at least (\d+), better some hundreds, that the network was not trained on"),
        r"\1 are needed, better some hundreds: train again with a larger --validation-fraction",
    ),
    (re.compile(r"evaluate it with apac\.evaluate"), "evaluate it from Python with apac.evaluate"),
    (re.compile(r"pass images that it was not trained on to apac\.tune"), "tune it from Python with apac.tune"),
)
ROOT_OPTIONS = ("--threads", "--import", "--version")


def print_error(sentence: str) -> None:
    print(f"apac: {sentence}", file=sys.stderr)


def in_options(message: str) -> str:
    """Replace arguments in a library message by command-line options."""
    for clause, replacement in CLAUSES:
        message = clause.sub(replacement, message)
    message = FLAGS.sub(r"--\1", message)
    message = VALUES.sub(lambda match: f"{_option(match[1])} {match[2]}", message)
    return SUBJECTS.sub(lambda match: _option(match[1]), FIELDS.sub(lambda match: _option(match[1]), message))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def handle_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command so that expected errors print one sentence and set the exit status."""

    @functools.wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except (KeyboardInterrupt, Interrupted) as error:
            sentence = in_options(str(error)) or "interrupted; there are no incomplete files."
            _exit(sentence, INTERRUPTED, agreed=isinstance(error, KeyboardInterrupt) or error.agreed)
        except ApacError as error:
            _exit(in_options(str(error)), BAD_INPUT, agreed=error.agreed)
        except OSError as error:
            _exit(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}.", BAD_INPUT)

    return wrapped


def _exit(sentence: str, status: int, *, agreed: bool = False) -> NoReturn:
    """Print the sentence and exit. What all ranks agree on is printed by the first one."""
    if was_interrupted() and status != INTERRUPTED:
        sentence, status = "interrupted; there are no incomplete files.", INTERRUPTED
    number = rank()
    if not (agreed and number):
        print_error(f"rank {number}: {sentence}" if started_by_torchrun() and not agreed else sentence)
    raise typer.Exit(status)


class _Output(io.FileIO):
    """An output of the process. Once its reader has left, as `head` does, the rest is dropped and the work goes on.

    Likewise if something cannot be written, for example to a full disk; `error` is the first reason.
    """

    error: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            pass
        except OSError as error:
            self.error = self.error or error
        return memoryview(data).nbytes


def _replace_outputs() -> list[_Output]:
    """Replace the standard outputs by ones that drop what cannot be written; return that of the results, if any."""
    results = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed before the start
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (open until the end)
        elif stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            stream.flush()
            output = _Output(stream.fileno(), "wb", closefd=False)
            # A name in a file may have characters that the terminal has not.
            lines = stream.line_buffering or stream.write_through  # PYTHONUNBUFFERED sets the second
            text = io.TextIOWrapper(
                io.BufferedWriter(output), stream.encoding, "backslashreplace", line_buffering=lines
            )
            setattr(sys, name, text)
            results += [output] if name == "stdout" else []
    return results


def run_app(app: typer.Typer) -> None:
    """Run the command line, and print usage errors on one line instead of in a box."""
    results = _replace_outputs()
    remember_interrupts()
    try:
        status = app(prog_name="apac", standalone_mode=False)
        ignore_signal(signal.SIGINT)  # while Python ends, it would print a traceback
        if status and started_by_torchrun():
            ignore_signal(signal.SIGTERM)  # torchrun ends the others once one has ended
        sys.stdout.flush()
        for error in (output.error for output in results if output.error is not None):
            remedy = "free some space" if error.errno in FULL else "choose another output"
            print_error(f"the output is not complete: {error.strerror or error}; {remedy}, and repeat the command.")
            status = status or BAD_INPUT
        sys.exit(status)
    except KeyboardInterrupt:  # outside of a command, for example during an import
        print_error("interrupted.")
        sys.exit(INTERRUPTED)
    except Exception as error:
        # typer has no public base class for usage errors; they are recognized by these two attributes.
        context, message = getattr(error, "ctx", None), getattr(error, "format_message", None)
        if was_interrupted():
            print_error("interrupted.")
            sys.exit(INTERRUPTED)
        if context is None or message is None:
            raise
        if text := message().strip().rstrip("."):  # empty if the help was printed
            print_error(f"{text[:1].lower()}{text[1:]}; {_hint(text, context.command_path)}.")
        sys.exit(BAD_INPUT)


def _hint(text: str, command: str) -> str:
    misplaced = [option for option in ROOT_OPTIONS if f"option: {option}" in text]
    return f"{misplaced[0]} precedes the command, see apac --help" if misplaced else f"see {command} --help"
