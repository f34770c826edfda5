"""Jobs of other people: what is too large, or is not a file, costs little and is refused in one sentence."""

from __future__ import annotations

import os
from array import array
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from fuzz.file_targets import small_job

import apac
from apac.distributed import file_list
from apac.distributed.claims import Claims
from apac.distributed.job import Job
from apac.distributed.merge import merge_parts

SPARSE = 20 << 30  # bytes; a file system stores none of them


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return small_job(tmp_path)


def grow(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(SPARSE)


def test_a_huge_part_counts_as_damaged(job, tmp_path):
    grow(job.parts.path(1))
    with pytest.raises(apac.InputError, match=r"part 1 \(damaged\) must be decided"):
        merge_parts(tmp_path / "job", tmp_path / "merged.csv")


def test_a_huge_list_of_files_is_refused(job, tmp_path):
    grow(tmp_path / "job" / file_list.NAMES)
    (tmp_path / "job" / file_list.OFFSETS).write_bytes(array("Q", [0, SPARSE // 2, SPARSE]).tobytes())
    with pytest.raises(apac.StorageError, match=r"list of files in .* is damaged"):
        job.files.read(1)


def test_a_huge_name_of_a_file_is_refused(job, tmp_path):
    (tmp_path / "job" / file_list.NAMES).write_bytes(b"x" * 100_000)
    with pytest.raises(apac.StorageError, match=r"list of files in .* is damaged"):
        next(iter(job.files))


def test_a_parquet_file_of_many_rows_is_refused(tmp_path):
    job = small_job(tmp_path, format="parquet")
    content = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table({"image": pyarrow.nulls(1_000_000)}), content)
    job.parts.write(0, content.getvalue().to_pybytes())
    with pytest.raises(apac.StorageError, match=r"000000\.parquet is damaged"):
        merge_parts(tmp_path / "job", tmp_path / "merged.csv")


def test_a_folder_in_place_of_a_part_is_named(job, tmp_path):
    job.parts.path(0).unlink()
    job.parts.path(0).mkdir()
    with pytest.raises(apac.StorageError, match=r"could not read .*000000\.csv: it is not a regular file; remove it"):
        merge_parts(tmp_path / "job", tmp_path / "merged.csv")


def test_a_circle_of_links_in_place_of_the_parts_is_named(job, tmp_path):
    (tmp_path / "job" / "parts").rename(tmp_path / "others")
    (tmp_path / "job" / "parts").symlink_to("parts")
    with pytest.raises(apac.StorageError, match=r"could not list .*parts: .*; remove it"):
        merge_parts(tmp_path / "job", tmp_path / "merged.csv")


def test_a_pipe_in_place_of_a_claim_expires(tmp_path):
    (tmp_path / "claims").mkdir()
    os.mkfifo(tmp_path / "claims" / "7")
    with Claims(tmp_path / "claims", expiry=0.0) as claims:
        assert not claims.take("7")
        assert claims.take("7")
