"""Pipes and devices in place of files, which may never end, are refused at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import apac
from apac.cli.options import deformation_of
from apac.data.mapped import open_file
from apac.distributed.file_list import NAMES, OFFSETS, store_list
from apac.distributed.parts import Parts
from apac.runs.storage import write_atomically, write_text
from apac.validation import open_regular


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_only_regular_files_are_opened(pipe, tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    with open_regular(tmp_path / "file") as file:
        assert file.read() == b"content"
    for path in (pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(path)


def test_a_pipe_as_a_deformation_is_refused(pipe):
    with pytest.raises(apac.InputError, match="cannot be read: it is not a regular file"):
        deformation_of(str(pipe.rename(pipe.with_suffix(".json"))))


def test_a_pipe_a_device_or_a_folder_is_not_replaced_by_a_result(pipe, tmp_path):
    for path in (pipe, tmp_path, Path("/dev/null"), Path("/dev/stdout")):
        before = path.stat().st_mode
        with pytest.raises(apac.StorageError, match="is not a regular file, so it is not replaced"):
            write_atomically(path, lambda temporary: pytest.fail(f"{temporary} is written"))
        assert path.stat().st_mode == before


def test_a_link_is_replaced_and_its_target_kept(tmp_path):
    (tmp_path / "target").write_text("of someone else")
    (tmp_path / "result").symlink_to(tmp_path / "target")
    write_text(tmp_path / "result", "result")
    assert (tmp_path / "result").read_text() == "result"
    assert (tmp_path / "target").read_text() == "of someone else"


@pytest.mark.parametrize("suffix", [".json", ".u8"])
def test_a_pipe_in_a_cache_counts_as_damaged(suffix, tmp_path):
    os.mkfifo(tmp_path / f"images{suffix}")
    assert open_file(tmp_path / "images.u8", "source", (1, 2, 2), 3, verify=False) is None


@pytest.mark.parametrize("suffix", [".csv", ".sha256"])
def test_a_pipe_in_place_of_a_part_is_refused(suffix, tmp_path):
    parts = Parts(tmp_path, ".csv", 1, max_bytes=lambda part: 100)
    parts.write(0, b"a\n")
    (tmp_path / f"000000{suffix}").unlink()
    os.mkfifo(tmp_path / f"000000{suffix}")
    for call in (parts.state, parts.open):
        with pytest.raises(apac.StorageError, match="not a regular file; remove it, and it is decided again"):
            call(0)


@pytest.mark.parametrize("name", [NAMES, OFFSETS])
def test_a_pipe_in_the_list_of_files_counts_as_damaged(name, tmp_path):
    files = store_list(tmp_path, ["a.png", "b.png"])
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(apac.StorageError, match=r"the list of files in .* is damaged"):
        files.read(0)
    if name == NAMES:
        with pytest.raises(apac.StorageError, match=r"the list of files in .* is damaged"):
            list(files)
