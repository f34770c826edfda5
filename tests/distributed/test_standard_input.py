"""A list of files on the standard input: it can be read once, so that a restart must not take the rest for all."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest

import apac
from apac.distributed import file_list
from apac.distributed.agreement import check_agreement
from apac.distributed.claims import Claims
from apac.distributed.deciding import decide_files
from apac.distributed.job import LISTING, MAX_IDLE, open_job
from apac.distributed.ranks.group import Group
from apac.distributed.settings import settings_of
from commands import refusal, succeed
from file_jobs import file_classifier, write_images
from threaded_ranks import on_threads

LOST = "a rank was restarted before the list of files from the standard input was stored, and what it had read is lost"


class Input(io.BytesIO):
    """A pipe: what was read is gone. The process is killed after a number of lines."""

    def __init__(self, lines: str, dies_after: int | None = None) -> None:
        super().__init__(lines.encode())
        self.left = dies_after

    def readline(self, size: int | None = -1, /) -> bytes:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise KeyboardInterrupt
        return super().readline(size)


def pipe(monkeypatch: pytest.MonkeyPatch, images: Path, *, count: int = 6, dies_after: int | None = None) -> None:
    lines = "".join(f"{path}\n" for path in sorted(images.rglob("*.png"))[:count])
    content = Input(lines, dies_after)
    monkeypatch.setattr(file_list, "sys", SimpleNamespace(stdin=SimpleNamespace(buffer=content)))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images", 6)


def test_a_restart_trusts_the_stored_list(images, tmp_path, monkeypatch):
    pipe(monkeypatch, images)
    decide_files(file_classifier(), ["-"], tmp_path / "d", part_size=2)
    (tmp_path / "d" / "parts" / "000001.sha256").unlink()
    again = decide_files(file_classifier(), ["-"], tmp_path / "d", part_size=2, is_restart=True)  # the pipe is empty
    assert (again.job.files.count, again.decided) == (6, 2)


def test_the_same_command_without_a_restart_compares_the_lists(images, tmp_path, monkeypatch):
    pipe(monkeypatch, images)
    decide_files(file_classifier(), ["-"], tmp_path / "d")
    pipe(monkeypatch, images)
    assert decide_files(file_classifier(), ["-"], tmp_path / "d").decided == 0
    pipe(monkeypatch, images, count=5)
    with pytest.raises(apac.InputError, match=r"in its list, file 6 is .*, not the end of the list"):
        decide_files(file_classifier(), ["-"], tmp_path / "d")


def test_a_restart_does_not_take_the_rest_of_the_pipe_for_the_list(images, tmp_path, monkeypatch):
    pipe(monkeypatch, images, dies_after=4)
    with pytest.raises(KeyboardInterrupt):
        decide_files(file_classifier(), ["-"], tmp_path / "d")
    for rank in (0, 1):
        with pytest.raises(apac.InputError, match=f"{LOST}; write the list to a file and use @list"):
            decide_files(file_classifier(), ["-"], tmp_path / "d", rank=rank, ranks=2, is_restart=True)
    pipe(monkeypatch, images)  # started again by hand, with the whole list
    assert decide_files(file_classifier(), ["-"], tmp_path / "d").decided == 6


def test_a_restart_does_not_trust_an_older_list_that_was_not_compared(images, tmp_path, monkeypatch):
    pipe(monkeypatch, images, count=4)
    decide_files(file_classifier(), ["-"], tmp_path / "d")
    pipe(monkeypatch, images, dies_after=2)
    with pytest.raises(KeyboardInterrupt):
        decide_files(file_classifier(), ["-"], tmp_path / "d")
    with pytest.raises(apac.InputError, match=LOST):
        decide_files(file_classifier(), ["-"], tmp_path / "d", is_restart=True)


def test_a_list_that_is_refused_leaves_an_empty_folder(images, tmp_path, monkeypatch):
    long = io.BytesIO(b"1.png\n" + b"x" * 1_000_000)
    monkeypatch.setattr(file_list, "sys", SimpleNamespace(stdin=SimpleNamespace(buffer=long)))
    with pytest.raises(apac.InputError, match=r"the standard input must have one path per line, got .* in line 2"):
        decide_files(file_classifier(), ["-"], tmp_path / "d")
    assert not list((tmp_path / "d").iterdir())
    with pytest.raises(apac.InputError, match=LOST):
        decide_files(file_classifier(), ["-"], tmp_path / "d", is_restart=True)


def test_a_restart_does_not_trust_a_job_after_its_list_was_refused(images, tmp_path, monkeypatch):
    pipe(monkeypatch, images)
    decide_files(file_classifier(), ["-"], tmp_path / "d")
    pipe(monkeypatch, images, count=5)
    with pytest.raises(apac.InputError, match="another job"):
        decide_files(file_classifier(), ["-"], tmp_path / "d")
    with pytest.raises(apac.InputError, match=LOST):
        decide_files(file_classifier(), ["-"], tmp_path / "d", is_restart=True)


def test_restarted_ranks_refuse_together(tmp_path):
    settings = settings_of(file_classifier(), None, "csv")

    def sentence(group: Group) -> str:
        with pytest.raises(apac.InputError) as error:
            check_agreement(group, settings, ["-"], tmp_path / "d", part_size=None, is_restart=True)
        assert error.value.agreed
        return str(error.value)

    (only,) = set(on_threads(2, sentence))
    assert only.startswith(LOST)


def test_the_command_knows_from_torchrun_that_it_is_a_restart(images, tmp_path, monkeypatch):
    command = ("classify", "mnist-cnn", "-", "--plain", "--out", tmp_path / "d")
    pipe(monkeypatch, images)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert LOST in refusal(*command)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert "decided 6 of 6 files" in succeed(*command).stdout
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert "decided 0 of 6 files" in succeed(*command).stdout


def test_ranks_wait_with_growing_pauses_while_the_first_one_reads_and_not_forever_after_it_died(tmp_path):
    settings = settings_of(file_classifier(), None, "csv")
    waits: list[float] = []
    with Claims(tmp_path / "d" / "claims") as first, Claims(tmp_path / "d" / "claims") as claims:
        assert first.take(LISTING)

        def wait(seconds: float) -> None:
            waits.append(seconds)
            if sum(waits) > 2 * MAX_IDLE and len(waits) == reads:
                first.release(LISTING)

        reads = 250
        with pytest.raises(apac.InputError, match="the first rank has not stored the list of files from the standard"):
            open_job(tmp_path / "d", claims, settings, ["-"], is_first=False, wait=wait)
    assert waits[:7] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert MAX_IDLE <= sum(waits[reads - 1 :]) <= MAX_IDLE + 10
