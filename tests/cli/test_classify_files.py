"""apac classify with an output folder, and apac merge."""

from __future__ import annotations

import csv
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from apac.cli import signals
from apac.distributed.part_queue import PartQueue
from apac.errors import missing
from commands import call, refusal, succeed


@pytest.fixture
def folder(digit: tuple[Path, str], tmp_path: Path) -> Path:
    (tmp_path / "digits").mkdir()
    for name in ("1.png", "2.png", "3.png"):
        shutil.copy(digit[0], tmp_path / "digits" / name)
    (tmp_path / "digits" / "4.png").write_text("no image")
    return tmp_path / "digits"


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_the_joined_file_has_the_rows_of_the_csv_option(folder, tmp_path):
    out = tmp_path / "decisions"
    options = ("mnist-cnn", folder, "--passes", 8)
    result = succeed("classify", *options, "--out", out)
    assert result.stdout.splitlines() == [
        "decided 4 of 4 files, 1 of them unreadable (see that column).",
        f"All decisions are in {out}/parts; join them with: apac merge {out} --csv FILE",
    ]
    assert succeed("merge", out, "--csv", tmp_path / "all.csv").stdout == (
        f"{tmp_path / 'all.csv'}: the decisions of 4 files.\n"
    )
    call("classify", *options, "--csv", tmp_path / "expected.csv")
    joined, expected = rows(tmp_path / "all.csv"), rows(tmp_path / "expected.csv")
    assert "cannot be read as an image" in joined[3]["unreadable"]
    assert [{k: v for k, v in row.items() if k != "unreadable"} for row in joined[:3]] == expected
    assert succeed("classify", *options, "--out", out).stdout.startswith("decided 0 of 4 files.\n")


def test_an_interrupted_job_continues_with_the_same_command(folder, tmp_path, monkeypatch):
    def stop(self: PartQueue, part: int, content: bytes) -> None:
        raise KeyboardInterrupt

    command = ("classify", "mnist-cnn", folder, "--plain", "--part-size", 2, "--out", tmp_path / "d")
    with monkeypatch.context() as patch:
        patch.setattr(PartQueue, "store", stop)
        result = call(*command)
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == (
        f"apac: interrupted; the same command continues with what is left in {tmp_path / 'd'}."
    )
    assert "2 parts, part 0 (missing), part 1 (missing) must be decided" in refusal(
        "merge", tmp_path / "d", "--csv", tmp_path / "all.csv"
    )
    assert succeed(*command).stdout.startswith("decided 4 of 4 files")


def test_ranks_of_torchrun_share_the_work_and_only_the_first_reports(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    command = ("classify", "mnist-cnn", folder, "--plain", "--out", tmp_path / "d")
    result = succeed(*command)
    assert result.stdout.startswith("rank 1: decided 4 of 4 files")
    assert result.stderr == ""
    assert "its seed is 0, not 1" in refusal(*command, "--seed", 1)
    monkeypatch.setenv("RANK", "2")
    assert "got 2 and 2" in refusal(*command)
    monkeypatch.setenv("RANK", "first")
    assert "RANK and WORLD_SIZE must be integers" in refusal(*command)


def test_options_that_do_not_fit_are_refused(folder, tmp_path, monkeypatch):
    command = ("classify", "mnist-cnn", folder)
    assert "--parquet and --part-size belong to --out" in refusal(*command, "--parquet")
    assert "omit --json and --csv" in refusal(*command, "--out", tmp_path / "d", "--json")
    assert "--part-size must be an integer of at least 1" in refusal(
        *command, "--out", tmp_path / "d", "--part-size", 0
    )
    assert "no file or folder nothing" in refusal("classify", "mnist-cnn", "nothing", "--out", tmp_path / "d")
    if Path("/sys/kernel").is_dir():  # where not even root can write
        assert "could not write to /sys/apac/claims" in refusal(*command, "--out", "/sys/apac")

    def fail(module: str, *, extra: str) -> None:
        raise missing(module, extra)

    monkeypatch.setattr("apac.distributed.deciding.require", fail)
    assert "pyarrow is not installed; run: pip install" in refusal(*command, "--out", tmp_path / "d", "--parquet")


def test_sigterm_interrupts_and_the_handler_is_restored():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), signals.interrupt_on_signal():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_rank_is_interrupted_once_although_torchrun_forwards_the_signal(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with signals.interrupt_on_signal():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)  # while the rank stores its state


def test_the_room_is_imported_only_with_an_output_folder():
    # The layers that a command without one uses are above the room and cannot import it, see test_architecture.py.
    code = "import sys, apac.cli; print([name for name in sys.modules if 'distributed' in name or 'arrow' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
