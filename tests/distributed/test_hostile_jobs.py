"""Jobs of other people: what is too large, or is not a file, costs little and is refused in one sentence."""

from __future__ import annotations

import os
from array import array
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from fuzz.file_targets import small_job

import apac
from apac import limits
from apac.distributed import file_list
from apac.distributed.claims import Claims
from apac.distributed.deciding import decide_files
from apac.distributed.job import Job, open_job
from apac.distributed.merge import merge_parts
from apac.distributed.tables import BOOLEANS, INTEGERS, row_of, to_bytes
from apac.evaluation.records import COLUMNS
from file_jobs import file_classifier, merged, write_images

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
    (tmp_path / "job" / file_list.NAMES).write_bytes(b"x" * (limits.PATH_BYTES + 1) + b"\0x\0x\0")
    (tmp_path / "job" / file_list.OFFSETS).write_bytes(array("Q", [0, limits.PATH_BYTES + 4]).tobytes())
    for read in (lambda: next(iter(job.files)), lambda: job.files.read(0)):
        with pytest.raises(apac.StorageError, match=r"list of files in .* is damaged"):
            read()


def test_the_bytes_of_a_part_are_bounded_by_its_files_not_by_the_part_size(job):
    large = replace(job, files=replace(job.files, part_size=1_000_000))
    assert large.parts.max_bytes(0) < 1 << 20


@pytest.mark.parametrize("format", ["csv", "parquet"])
@pytest.mark.parametrize("character", [b'"', b"\xe9", "\U0001f600".encode()], ids=["quotes", "bytes", "symbols"])
def test_the_longest_paths_and_their_reasons_fit_into_a_part(character, format, tmp_path):
    paths = [b"%04d" % number + (limits.PATH_BYTES - 4) // len(character) * character for number in range(40)]
    (tmp_path / "list").write_bytes(b"\n".join(paths))
    decide_files(file_classifier(), [f"@{tmp_path}/list"], tmp_path / "job", format=format, part_size=40)
    merge_parts(tmp_path / "job", tmp_path / "merged.csv")


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_the_longest_names_of_classes_fit_into_a_part(format, tmp_path):
    classes = tuple(f"{number:03}".ljust(limits.CLASS_NAME, "\U0001f600") for number in range(100))
    (tmp_path / "1.png").touch()
    with Claims(tmp_path / "claims") as claims:
        job = open_job(tmp_path / "job", claims, {"format": format, "classes": classes}, [str(tmp_path)], part_size=1)
    path = "\udce9" * limits.PATH_BYTES
    numbers = dict.fromkeys(COLUMNS, -1.2345678901234567e-300) | dict.fromkeys(INTEGERS, 2**40)
    texts = {"image": path, "label": classes[0], "runner_up": classes[1], "stopped": "exhaustive", "combine": "product"}
    probabilities = {name: 1.2345678901234567e-300 / (number + 1) for number, name in enumerate(classes)}
    record = numbers | dict.fromkeys(BOOLEANS, False) | texts | {"probabilities": probabilities}
    job.parts.write(0, to_bytes([row_of(record, classes)], classes, job.format))
    assert job.parts.state(0) == "complete"


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_a_small_job_is_merged_even_without_the_offsets_of_its_parts(format, tmp_path):
    small_job(tmp_path, format)
    (tmp_path / "job" / file_list.OFFSETS).unlink()
    merge_parts(tmp_path / "job", tmp_path / "merged.csv")
    lines = (tmp_path / "merged.csv").read_text().splitlines()
    assert [Path(line.split(",")[0]).name for line in lines] == ["image", "0.png", "1.png", "2.png"]


@pytest.mark.parametrize(
    "change",
    [
        lambda table: pyarrow.concat_tables([table] * 1000),
        lambda table: table.rename_columns(["a", *table.column_names[1:]]),
        lambda table: table.drop_columns(["image"]),
        lambda table: table.set_column(0, "image", pyarrow.array(["x" * 100_000] * len(table))),
    ],
    ids=["rows", "names", "columns", "texts"],
)
def test_a_parquet_file_of_other_rows_or_columns_or_long_texts_is_refused(change, tmp_path):
    job = small_job(tmp_path, "parquet")
    content = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(change(pyarrow.parquet.read_table(job.parts.path(0))), content)
    job.parts.write(0, content.getvalue().to_pybytes())
    with pytest.raises(apac.StorageError, match=r"000000\.parquet is damaged"):
        merge_parts(tmp_path / "job", tmp_path / "merged.csv")


def test_a_folder_in_place_of_a_part_is_named(job, tmp_path):
    job.parts.path(0).unlink()
    job.parts.path(0).mkdir()
    with pytest.raises(apac.StorageError, match=r"could not read .*000000\.csv: it is not a regular file; remove it"):
        merge_parts(tmp_path / "job", tmp_path / "merged.csv")


@pytest.mark.parametrize("name", ["0", "0000000", "00000\u0660", "000002", "link"])
def test_files_beside_the_parts_do_not_count_as_parts(name, tmp_path):
    images = write_images(tmp_path / "images", 4)
    expected = merged(file_classifier(), images, tmp_path / "job", part_size=2)
    parts = tmp_path / "job" / "parts"
    for file in parts.glob("000000.*"):
        file.unlink()
    if name == "link":
        (parts / "000000.sha256").symlink_to("nowhere")
    else:
        (parts / f"{name}.sha256").touch()
    with pytest.raises(apac.InputError, match=r"of 2 parts, part 0 \(missing\) must be decided"):
        merge_parts(tmp_path / "job", tmp_path / "again.csv")
    assert merged(file_classifier(), images, tmp_path / "job", part_size=2) == expected
    if name != "link":
        assert (parts / f"{name}.sha256").exists()


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
