"""Progress as lines, where there is no terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from contextlib import suppress

from apac import terminal


def test_a_task_has_a_line_when_it_begins_and_one_when_it_ends(capsys):
    with terminal.watched() as progress:
        for done in (1, 2, 3, 4, 4):
            progress("fetching", done, 4, "slowly")
        progress("deciding", 1, 1)
    assert capsys.readouterr().err.splitlines() == [
        "fetching: 25 %, slowly",
        "fetching: 100 %, slowly",
        "deciding: 100 %",
    ]


def test_a_long_task_has_a_line_now_and_then_with_the_time_left(capsys, monkeypatch):
    clock = iter(range(0, 100, 3))
    monkeypatch.setattr(terminal.time, "monotonic", lambda: float(next(clock)))
    lines = terminal.Lines()
    for done in range(8):  # three seconds each
        lines("training", done, 8)
    assert capsys.readouterr().err.splitlines() == ["training: 0 %", "training: 50 %, 12 s left"]


def test_on_a_terminal_there_is_a_bar():
    code = (
        "import time\nfrom apac.terminal import watched\n"
        "with watched() as progress:\n"
        "    for done in range(1, 4):\n"
        "        progress('training', done, 3, 'loss 0.5'); time.sleep(0.1)\n"
    )
    master, slave = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", code], stderr=slave)
    os.close(slave)
    data = b""
    with suppress(OSError):  # the end of a terminal is an error
        while part := os.read(master, 4096):
            data += part
    os.close(master)
    assert process.wait() == 0
    seen = data.decode()
    assert "━" in seen
    assert "loss 0.5" in seen
    assert "100%" in seen
