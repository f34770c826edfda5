"""Worker processes that do not start."""

from __future__ import annotations

import socket

import pytest

from apac.errors import InputError
from apac.serve import workers


def test_workers_that_cannot_start_are_tried_less_and_less_often_and_then_given_up(monkeypatch, capsys):
    monkeypatch.setattr(workers, "FIRST_DELAY", 0.001)
    monkeypatch.setattr(workers, "POLL_SECONDS", 0.01)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(InputError, match="no worker can start; the lines above say why, or try with one worker"),
    ):
        workers.supervise(print, 1, listener, [])  # which returns at once
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("a worker")]
    assert lines == [
        f"a worker ended with status 0; another starts in {delay} s" for delay in ("0.001", "0.002", "0.004", "0.008")
    ]
