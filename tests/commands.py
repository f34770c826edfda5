"""Call the command line."""

from __future__ import annotations

from typer.testing import CliRunner, Result

import apac
from apac import cli


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def succeed(*arguments: object) -> Result:
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return result


def refusal(*arguments: object, status: int = 2) -> str:
    """Return the one sentence on standard error; standard output must be empty."""
    result = call(*arguments)
    assert result.exit_code == status, result.output
    assert not isinstance(result.exception, apac.ApacError)
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("apac: ")
    return lines[0]
