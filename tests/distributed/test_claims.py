"""Claims: one owner at a time, and those of the dead are taken over."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

import apac
from apac.distributed import claims as claims_module
from apac.distributed.claims import Claims


class Clock:
    """The module's clock, which tests set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(claims_module, "time", SimpleNamespace(monotonic=lambda: self.now))


def test_a_claim_has_one_owner_until_it_is_released(tmp_path):
    with Claims(tmp_path / "c") as ours, Claims(tmp_path / "c") as theirs:
        assert ours.take("7")
        assert not theirs.take("7")
        assert not ours.take("7")
        ours.release("7")
        assert theirs.take("7")
    assert not (tmp_path / "c").exists()


def test_a_claim_of_another_machine_expires_by_the_clock_of_the_observer(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    (tmp_path / "7").write_text("another machine\n")
    os.utime(tmp_path / "7", (9e9, 9e9))  # by a clock that is years ahead
    with Claims(tmp_path, expiry=60) as ours:
        assert not ours.take("7")
        clock.now = 50
        assert not ours.take("7")
        os.utime(tmp_path / "7", (8e9, 8e9))  # it is touched
        clock.now = 100
        assert not ours.take("7")
        clock.now = 150
        assert not ours.take("7")
        clock.now = 161
        assert ours.take("7")


def test_a_claim_without_an_owner_expires_too(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    (tmp_path / "7").touch()  # the process died after creating it, or a file system without locks
    with Claims(tmp_path, expiry=60) as ours:
        assert not ours.take("7")
        clock.now = 61
        assert ours.take("7")


HOLD = """
import sys, time
from pathlib import Path
from apac.distributed.claims import Claims
with Claims(Path(sys.argv[1])) as claims:
    print(claims.take("7"), flush=True)
    time.sleep(1000)
"""


@contextmanager
def owner(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which has claimed 7."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "True\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_claim_of_a_killed_process_of_this_machine_is_taken_over_at_once(tmp_path):
    with owner(tmp_path) as process, Claims(tmp_path) as ours:
        assert not ours.take("7")
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert ours.take("7")


def test_claims_that_killed_processes_left_for_stored_parts_are_removed_at_the_end(tmp_path):
    folder = tmp_path / "claims"
    with owner(folder) as process:
        process.send_signal(signal.SIGKILL)
    assert [path.name for path in folder.iterdir()] == ["7"]
    with Claims(folder) as ours:
        (folder / "8").write_text("another machine\n")
        assert ours.take("9")
    assert [path.name for path in folder.iterdir()] == ["8"]  # its owner may live


def test_a_process_that_lost_its_claim_does_not_release_that_of_another(tmp_path):
    with Claims(tmp_path) as ours, Claims(tmp_path) as theirs:
        assert ours.take("7")
        (tmp_path / "7").unlink()  # expired, while this process was suspended
        assert theirs.take("7")
        ours.release("7")
        assert not ours.take("7")


def test_the_owner_touches_its_claims(tmp_path):
    with Claims(tmp_path, heartbeat=0.01) as ours:
        assert ours.take("7")
        os.utime(tmp_path / "7", (0, 0))
        while not (tmp_path / "7").stat().st_mtime:
            pass


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a folder that not even root can write to")
def test_the_folder_may_vanish_while_it_is_created(tmp_path, monkeypatch):
    mkdir, removed = os.mkdir, []

    def racing(path: Path, mode: int = 0o777) -> None:
        try:
            mkdir(path, mode)
        except FileExistsError:
            Path(path).rmdir()  # as the last process does that releases its claims
            removed.append(path)
            raise

    (tmp_path / "claims").mkdir()
    monkeypatch.setattr(os, "mkdir", racing)
    with Claims(tmp_path / "claims") as claims:
        (tmp_path / "claims").rmdir()
        assert claims.take("7")
    assert len(removed) == 1


def test_a_folder_that_cannot_be_written_is_refused_in_one_sentence():
    with (
        pytest.raises(apac.StorageError, match="could not write to /sys/apac/claims: "),
        Claims(Path("/sys/apac/claims")),
    ):
        pass


def test_a_claim_on_a_full_disk_leaves_nothing_for_which_others_would_wait(tmp_path, monkeypatch):
    def full(file: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Claims(tmp_path / "claims") as claims:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(apac.StorageError, match=r"could not write to .*claims: No space left"):
                claims.take("7")
        assert claims.take("7")
