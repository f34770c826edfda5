"""Deciding files in parts: the same bytes by any number of processes and after interruptions, nothing twice."""

from __future__ import annotations

import csv
import logging
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image

import apac
from apac.distributed import deciding as deciding_module
from apac.distributed.deciding import decide_files
from apac.distributed.merge import merge_parts
from apac.distributed.part_queue import PartQueue
from apac.inference.engine import MIN_OPERATIONS, operations
from apac.runs import file_classifier as file_classifier_module
from apac.validation import open_regular
from file_jobs import CLASSES, file_classifier, merged, seeded, write_images

FILES, PART = 22, 4  # six parts, the last of two files


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), FILES)


@pytest.fixture(scope="module")
def whole(images: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The joined file of a single process."""
    return merged(file_classifier(), images, tmp_path_factory.mktemp("out") / "whole")


def rows_of(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(content.decode().splitlines()))


def test_the_decisions_are_those_of_all_images_at_once(images, whole):
    decider = file_classifier()
    paths = sorted(images.rglob("*.png"))
    pixels = torch.stack([torch.from_numpy(np.array(Image.open(path)))[None] for path in paths])
    decision = decider.classifier.decide(pixels.float() / 255)
    rows = rows_of(whole)
    assert [row["image"] for row in rows] == [str(path) for path in paths]
    assert [row["label"] for row in rows] == [CLASSES[label] for label in decision.labels]
    assert [int(row["passes"]) for row in rows] == decision.passes.tolist()
    assert len(set(decision.passes.tolist())) > 1
    # Batches of other sizes are summed in another order, see tests/classify/test_stream.py.
    margins = [float(row["margin"]) for row in rows]
    torch.testing.assert_close(torch.tensor(margins, dtype=torch.float64), decision.margins, rtol=0, atol=1e-5)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_the_file_is_the_same_for_any_number_of_ranks_of_which_all_but_one_die(
    images, whole, tmp_path, monkeypatch, ranks
):
    decided: Counter[int] = Counter()
    store = PartQueue.store

    def store_and_die(self: PartQueue, part: int, content: bytes) -> None:
        if len(decided) > dying:
            raise KeyboardInterrupt
        store(self, part, content)
        decided[part] += 1

    monkeypatch.setattr(PartQueue, "store", store_and_die)
    for dying in range(ranks - 1):  # each stores one part
        with pytest.raises(KeyboardInterrupt):
            decide_files(file_classifier(), [str(images)], tmp_path / "d", part_size=PART, rank=dying, ranks=ranks)
    dying = 100
    done = decide_files(file_classifier(), [str(images)], tmp_path / "d", part_size=PART, rank=ranks - 1, ranks=ranks)
    assert decided == dict.fromkeys(range(6), 1)  # nothing twice, nothing lost
    assert done.decided < FILES
    merge_parts(tmp_path / "d", tmp_path / "d.csv")
    assert (tmp_path / "d.csv").read_bytes() == whole


def test_the_file_does_not_depend_on_the_number_of_threads(images, whole, tmp_path):
    torch.set_num_threads(2)
    try:
        assert merged(file_classifier(), images, tmp_path / "d") == whole
    finally:
        torch.set_num_threads(1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10-cnn", "mnist-cnn"])  # by ONNX Runtime, and by OpenVINO
def test_the_file_of_a_prepared_network_does_not_depend_on_the_number_of_threads(name, tmp_path):
    run, images = apac.load(name), write_images(tmp_path / "images", 64)
    passes = int(2 * MIN_OPERATIONS / 64 / operations(run.network, torch.zeros(1, *run.image_shape)))
    contents = []
    for threads in (1, 2):
        out = tmp_path / str(threads)
        for command in (
            ["--threads", threads, "classify", name, images, "--passes", passes, "--out", out],
            ["merge", out, "--csv", out / "all.csv"],
        ):
            subprocess.run([sys.executable, "-m", "apac", *map(str, command)], check=True, capture_output=True)
        contents.append((out / "all.csv").read_bytes())
    assert contents[0] == contents[1]


def test_a_finished_job_is_not_decided_again(images, tmp_path):
    decide_files(file_classifier(), [str(images)], tmp_path / "d")
    assert decide_files(file_classifier(), [str(images)], tmp_path / "d").decided == 0


def test_a_large_batch_is_divided_in_the_same_way_in_every_process(images, tmp_path, monkeypatch):
    monkeypatch.setattr(file_classifier_module, "BATCH_BYTES", 3 * 4 * 64)  # three images
    contents = [merged(file_classifier(), images, tmp_path / name, part_size=8) for name in ("a", "b")]
    assert contents[0] == contents[1]
    assert len(rows_of(contents[0])) == FILES


def test_an_unreadable_file_is_a_row_with_the_reason(tmp_path):
    images = write_images(tmp_path / "images", 5)
    (images / "a" / "00002.png").write_text("no image")
    (images / "b" / "gone.png").symlink_to(tmp_path / "nowhere")
    (images / "c.heic").write_text("no image")
    rows = rows_of(merged(file_classifier(), images, tmp_path / "d"))
    assert [bool(row["unreadable"]) for row in rows] == [False, True, False, False, False, True]
    assert "cannot be read as an image" in rows[1]["unreadable"]
    assert "HEIC" in rows[5]["unreadable"]
    assert rows[1]["label"] == rows[1]["passes"] == rows[1]["probability_cat"] == ""
    listed = tmp_path / "list.txt"
    listed.write_text(f"{images}/a/00000.png\n{images}/b/gone.png\n")
    decide_files(file_classifier(), [f"@{listed}"], tmp_path / "e")
    merge_parts(tmp_path / "e", tmp_path / "e.csv")
    assert [row["unreadable"][:13] for row in rows_of((tmp_path / "e.csv").read_bytes())] == ["", "there is no f"]


def test_a_part_without_a_readable_file_has_rows(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_text("no image")
    (row,) = rows_of(merged(file_classifier(), tmp_path / "images", tmp_path / "d"))
    assert row["unreadable"]


def test_a_damaged_part_is_made_again_and_logged(images, whole, tmp_path, caplog):
    out = tmp_path / "d"
    merged(file_classifier(), images, out)
    truncated, changed, lost = (out / "parts" / f"00000{number}.csv" for number in (1, 2, 3))
    truncated.write_bytes(truncated.read_bytes()[:-9])
    changed.write_bytes(changed.read_bytes().replace(b"cat", b"dog"))
    lost.unlink()
    with pytest.raises(
        apac.InputError, match=r"of 6 parts, part 1 \(damaged\), part 2 \(damaged\), part 3 \(damaged\)"
    ):
        merge_parts(out, tmp_path / "all.csv")
    assert not list(tmp_path.glob("*all.csv*"))
    with caplog.at_level(logging.WARNING, "apac"):
        done = decide_files(file_classifier(), [str(images)], out, part_size=PART)
    assert [record.getMessage() for record in caplog.records] == [
        f"{path} is damaged and is decided again." for path in (truncated, changed, lost)
    ]
    assert done.decided == 3 * PART
    merge_parts(out, tmp_path / "all.csv")
    assert (tmp_path / "all.csv").read_bytes() == whole


def test_merging_names_what_is_missing(images, tmp_path, monkeypatch):
    monkeypatch.setattr(PartQueue, "store", stop)
    with pytest.raises(KeyboardInterrupt):
        decide_files(file_classifier(), [str(images)], tmp_path / "d", part_size=PART)
    with pytest.raises(apac.InputError) as error:
        merge_parts(tmp_path / "d", tmp_path / "d.csv")
    assert f"part 4 (missing) and 1 others must be decided, from the file {images / 'a' / '00000.png'} on" in str(
        error.value
    )
    assert not (tmp_path / "d.csv").exists()
    with pytest.raises(apac.InputError, match="has no decisions"):
        merge_parts(images, tmp_path / "d.csv")


def stop(self: PartQueue, part: int, content: bytes) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_merging_opens_each_part_once(images, whole, tmp_path, monkeypatch, format):
    decide_files(file_classifier(), [str(images)], tmp_path / "d", part_size=PART, format=format)
    opened: Counter[str] = Counter()

    def opening(path: Path) -> Any:
        opened[path.suffix] += path.parent.name == "parts"
        return open_regular(path)

    monkeypatch.setattr("apac.distributed.parts.open_regular", opening)
    merge_parts(tmp_path / "d", tmp_path / "d.csv")
    assert opened[f".{format}"] == 6
    assert (tmp_path / "d.csv").read_bytes() == whole


def test_parquet_parts_hold_the_same_values_and_join_to_the_same_file(images, whole, tmp_path):
    out = tmp_path / "d"
    decide_files(file_classifier(), [str(images)], out, part_size=PART, format="parquet")
    merge_parts(out, tmp_path / "d.csv")
    assert (tmp_path / "d.csv").read_bytes() == whole
    table = pyarrow.parquet.read_table(sorted((out / "parts").glob("*.parquet")))
    assert table["passes"].to_pylist() == [int(row["passes"]) for row in rows_of(whole)]


def test_a_part_that_is_claimed_by_a_living_process_is_awaited(images, whole, tmp_path, monkeypatch):
    from apac.distributed.claims import Claims

    out = tmp_path / "d"
    merged(file_classifier(), images, out)
    for suffix in ("csv", "sha256"):
        (out / "parts" / f"000002.{suffix}").rename(tmp_path / suffix)
    waits = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:  # the other process stores the part and releases its claim
            for suffix in ("csv", "sha256"):
                (tmp_path / suffix).rename(out / "parts" / f"000002.{suffix}")
            other.release("2")

    monkeypatch.setattr(deciding_module.Worker.__init__, "__kwdefaults__", {"wait": wait})
    with Claims(out / "claims") as other:
        assert other.take("2")
        assert decide_files(file_classifier(), [str(images)], out, part_size=PART).decided == 0
    assert waits == [0.1, 0.2, 0.4]


def test_progress_counts_the_files_of_all_processes(images, tmp_path):
    reports = []
    merged(file_classifier(), images, tmp_path / "d")
    (tmp_path / "d" / "parts" / "000000.sha256").unlink()
    decide_files(
        file_classifier(),
        [str(images)],
        tmp_path / "d",
        progress=lambda task, done, total, note="": reports.append((task, done, total)),
    )
    assert reports == [("deciding", FILES - PART, FILES), ("deciding", FILES, FILES)]


def test_a_job_with_another_seed_is_refused(images, tmp_path):
    decide_files(file_classifier(), [str(images)], tmp_path / "d")
    with pytest.raises(apac.InputError, match="has another job: its seed is 0, not 1; repeat the command"):
        decide_files(seeded(file_classifier(), 1), [str(images)], tmp_path / "d", rank=1, ranks=2)
