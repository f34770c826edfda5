"""Temporary files: those of killed processes are taken over, those of others are left alone."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from apac.data import temporary as module
from apac.data.temporary import temporary_beside
from apac.runs.storage import write_text

WRITER = """
import signal, sys
from pathlib import Path
from apac.data.temporary import temporary_beside
with temporary_beside(Path(sys.argv[1]), folder=sys.argv[2] == "folder") as temporary:
    (temporary / "part" if temporary.is_dir() else temporary).write_text("incomplete")
    print(temporary, flush=True)
    signal.pause()
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_process_left_is_taken_over_and_what_a_live_one_writes_is_not(kind, tmp_path):
    path, folder = tmp_path / "out", kind == "folder"
    with subprocess.Popen([sys.executable, "-c", WRITER, path, kind], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        written = Path(process.stdout.readline().strip())
        with temporary_beside(path, folder=folder) as other:
            assert other != written and names(tmp_path) == [".out.0", ".out.1"]
        process.send_signal(signal.SIGKILL)
    assert names(tmp_path) == [".out.0"]
    with temporary_beside(path, folder=folder) as again:
        assert again == written
        assert not list(again.iterdir()) if folder else not again.read_bytes()
    assert names(tmp_path) == []


def test_a_folder_is_taken_over_though_a_program_still_writes_there(tmp_path, monkeypatch):
    (tmp_path / ".out.0" / "cache").mkdir(parents=True)

    def not_empty(path: Path) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "rmtree", not_empty)
        with temporary_beside(tmp_path / "out", folder=True) as again:
            assert again == tmp_path / ".out.0"


def test_a_file_is_written_after_a_kill_and_nothing_else_is_left(tmp_path):
    (tmp_path / ".out.0").write_text("incomplete and longer than the file")
    write_text(tmp_path / "out", "complete")
    assert names(tmp_path) == ["out"] and (tmp_path / "out").read_text() == "complete"


def test_the_file_of_the_next_writer_is_not_removed(tmp_path):
    path = tmp_path / "out"
    with ExitStack() as others:
        with temporary_beside(path) as first:
            first.replace(path)
            second = others.enter_context(temporary_beside(path))
        assert second == first and second.exists()


def test_links_in_a_folder_of_someone_else_are_not_followed(tmp_path):
    precious, folder = tmp_path / "precious", tmp_path / "run"
    folder.mkdir()
    (tmp_path / "documents").mkdir()
    for file in (precious, tmp_path / "documents" / "letter"):
        file.write_text("kept")
    (folder / ".a.0").symlink_to(precious)
    (folder / ".b.0").hardlink_to(precious)
    (folder / ".c.0").symlink_to(tmp_path / "documents")
    os.mkfifo(folder / ".d.0")
    for name in "abd":
        write_text(folder / name, "new")
    with temporary_beside(folder / "c", folder=True) as temporary:
        (temporary / "letter").write_text("new")
    assert precious.read_text() == (tmp_path / "documents" / "letter").read_text() == "kept"
    assert [(folder / name).read_text() for name in "abd"] == ["new"] * 3


@pytest.mark.parametrize("locks", ["none", "refused"])
def test_without_locks_names_are_random(locks, tmp_path, monkeypatch):
    class Refusing:
        LOCK_EX = LOCK_NB = 0

        @staticmethod
        def flock(file: int, operation: int) -> None:
            raise OSError("no locks available")

    monkeypatch.setattr(module, "fcntl", None if locks == "none" else Refusing)
    opened = os.listdir("/proc/self/fd")
    with temporary_beside(tmp_path / "out") as first, temporary_beside(tmp_path / "out") as second:
        assert names(tmp_path) == sorted({first.name, second.name})
    assert names(tmp_path) == []
    assert os.listdir("/proc/self/fd") == opened


def test_many_writers_of_one_file_leave_one_of_their_contents(tmp_path):
    path = tmp_path / "out"
    contents = [str(number) * 10_000 for number in range(4)]

    def write(content: str) -> None:
        for _ in range(25):
            write_text(path, content)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() in contents and names(tmp_path) == ["out"]
