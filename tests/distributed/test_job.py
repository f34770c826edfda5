"""The job of a folder: other jobs, other data and other folders are refused, with the first difference."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import apac
from apac import limits
from apac.distributed import job as job_module
from apac.distributed import settings as settings_module
from apac.distributed.claims import Claims
from apac.distributed.deciding import decide_files
from apac.distributed.file_list import find_images, store_list
from apac.distributed.job import LISTING, open_job, read_job
from apac.distributed.merge import merge_parts
from apac.distributed.parts import Parts
from apac.distributed.settings import settings_of
from apac.runs.file_classifier import FileClassifier
from file_jobs import file_classifier, write_images


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images", 6)


def with_rule(decider: FileClassifier) -> FileClassifier:
    return replace(decider, classifier=replace(decider.classifier, rule=apac.FixedPasses(3)))


def with_weights(decider: FileClassifier) -> FileClassifier:
    with torch.no_grad():
        decider.classifier.network[1].bias[0] = 1e-6  # type: ignore[index]
    return decider


def with_temperature(decider: FileClassifier) -> FileClassifier:
    return replace(decider, classifier=replace(decider.classifier, temperature=2.0))


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        (with_rule, r"its rule is Certified\(.*\), not FixedPasses\(passes=3\)"),
        (with_weights, "its network is [0-9a-f]{64}, not [0-9a-f]{64}"),
        (with_temperature, "its temperature is 1.0, not 2.0"),
        (lambda decider: replace(decider, fit="pad"), "its fit is crop, not pad"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_another_job_is_refused_with_the_first_difference(images, tmp_path, change, difference, rank):
    decide_files(file_classifier(), [str(images)], tmp_path / "d")
    with pytest.raises(apac.InputError, match=f"d has another job: {difference}; repeat the command"):
        decide_files(change(file_classifier()), [str(images)], tmp_path / "d", rank=rank, ranks=2)


def test_other_files_versions_and_parts_are_refused(images, tmp_path, monkeypatch):
    decide_files(file_classifier(), [str(images)], tmp_path / "d")
    with pytest.raises(apac.InputError, match="its part size is 512, not 7"):
        decide_files(file_classifier(), [str(images)], tmp_path / "d", part_size=7)
    with pytest.raises(apac.InputError, match="its list of sources is "):
        decide_files(file_classifier(), [str(images / "a")], tmp_path / "d", rank=1, ranks=2)
    with pytest.raises(apac.InputError, match="its format is csv, not parquet"):
        decide_files(file_classifier(), [str(images)], tmp_path / "d", format="parquet")
    for changed, package in (("code_version", "apac"), ("installed_version", "torch")):
        with monkeypatch.context() as patch:
            patch.setattr(settings_module, changed, lambda *name: "9.9")
            with pytest.raises(apac.InputError, match=rf"d has another job: its version of {package} is .*, not 9.9"):
                decide_files(file_classifier(), [str(images)], tmp_path / "d")
    write_images(images, 8, seed=1)
    with pytest.raises(apac.InputError, match=r"in its list, file 4 is .*b/00001.png, not .*a/00006.png"):
        decide_files(file_classifier(), [str(images)], tmp_path / "d")


def test_relative_paths_belong_to_their_working_folder(images, tmp_path, monkeypatch):
    (tmp_path / "list").write_text("images/a/00000.png\n")
    monkeypatch.chdir(tmp_path)
    decide_files(file_classifier(), ["@list"], tmp_path / "d")
    monkeypatch.chdir(images)
    with pytest.raises(apac.InputError, match=r"its working folder is .*, not .*images"):
        decide_files(file_classifier(), ["@../list"], tmp_path / "d")


def test_a_machine_without_the_data_is_refused(images, tmp_path, monkeypatch):
    decide_files(file_classifier(), [str(images)], tmp_path / "d", part_size=2)
    first = images / "a" / "00000.png"
    first.write_bytes(b"other data")
    with pytest.raises(apac.InputError, match=r"the data differ .*00000\.png has 10 bytes"):
        decide_files(file_classifier(), [str(images)], tmp_path / "d", rank=1, ranks=2)
    images.rename(tmp_path / "moved")
    with pytest.raises(apac.InputError, match="this machine does not have the data of the job"):
        decide_files(file_classifier(), [str(images)], tmp_path / "d", rank=1, ranks=2)
    with pytest.raises(apac.InputError, match="there is no file or folder"):
        decide_files(file_classifier(), [str(images)], tmp_path / "d")


def test_data_that_vanish_meanwhile_are_not_rows_of_missing_files(images, tmp_path, monkeypatch):
    decode = FileClassifier.decode

    def vanish(self: FileClassifier, path: Path) -> torch.Tensor:
        if images.exists():
            images.rename(tmp_path / "moved")
        return decode(self, path)

    monkeypatch.setattr(FileClassifier, "decode", vanish)
    with pytest.raises(apac.InputError, match="this machine does not have the data of the job"):
        decide_files(file_classifier(), [str(images)], tmp_path / "d")
    assert not list((tmp_path / "d").glob("parts/*"))


def test_a_folder_of_something_else_is_refused_and_unchanged(images, tmp_path):
    with pytest.raises(apac.InputError, match=r"has other files, such as ., and no job.json"):
        decide_files(file_classifier(), [str(images)], images)
    assert sorted(path.name for path in images.iterdir()) == ["a", "b"]
    (tmp_path / "file").touch()
    with pytest.raises(apac.InputError, match="is a file; the decisions need a folder"):
        decide_files(file_classifier(), [str(images)], tmp_path / "file")
    for content, sentence in (("{", "damaged or truncated"), ("[]", "is not a job"), ('{"job": 1}', "is damaged")):
        (tmp_path / "d").mkdir(exist_ok=True)
        (tmp_path / "d" / "job.json").write_text(content)
        with pytest.raises(apac.ApacError, match=sentence):
            decide_files(file_classifier(), [str(images)], tmp_path / "d")


@pytest.mark.parametrize(
    "values",
    [
        *({"part size": value} for value in (0, -1, "x", True, 1e308)),
        *({"files": value} for value in (0, 10**15, "x", None)),
        *({"settings": 5}, {"settings": []}, {"settings": {}}),
        *({"sources": value} for value in (5, [None])),
        *({"probe": value} for value in (0, [], ["x"], [1, 2], ["x", None], {"a": 1})),
        *({"list": None}, {"working folder": 5}),
    ],
    ids=str,
)
def test_a_damaged_description_is_refused_in_one_sentence(values, images, tmp_path):
    decide_files(file_classifier(), [str(images)], tmp_path / "d", part_size=4)
    path = tmp_path / "d" / "job.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    with pytest.raises(apac.StorageError, match=r"job\.json is damaged; remove the folder and start again"):
        decide_files(file_classifier(), [str(images)], tmp_path / "d", part_size=4)
    with pytest.raises(apac.StorageError, match=r"job\.json is damaged"):
        merge_parts(tmp_path / "d", tmp_path / "d.csv")


@pytest.mark.parametrize("values", [{"format": "x"}, {"format": []}, {"classes": 5}, {"classes": ["\x1b[2J"]}], ids=str)
def test_a_description_with_damaged_settings_is_refused_in_one_sentence(values, images, tmp_path):
    decide_files(file_classifier(), [str(images)], tmp_path / "d")
    path = tmp_path / "d" / "job.json"
    payload = json.loads(path.read_text())
    path.write_text(json.dumps(payload | {"settings": payload["settings"] | values}))
    with pytest.raises(apac.StorageError, match=r"job\.json is damaged"):
        merge_parts(tmp_path / "d", tmp_path / "d.csv")


@pytest.mark.parametrize(("file", "size"), [("a\0b", 1), ("\ud800", 1), ("x\n" * 2000, 1), (None, 10**4000)])
def test_any_file_of_a_description_that_is_not_there_is_named_in_one_short_line(file, size, images, tmp_path):
    decide_files(file_classifier(), [str(images)], tmp_path / "d")
    path = tmp_path / "d" / "job.json"
    payload = json.loads(path.read_text())
    path.write_text(json.dumps(payload | {"probe": [file or payload["probe"][0], size]}))
    with pytest.raises(apac.InputError, match=r"this machine does not have the data|the data differ") as caught:
        decide_files(file_classifier(), [str(images)], tmp_path / "d")
    assert len(str(caught.value)) < 1000 and "\n" not in str(caught.value)


def test_missing_parts_are_named_without_looking_for_each(images, tmp_path, monkeypatch):
    decide_files(file_classifier(), [str(images)], tmp_path / "d", part_size=1)
    for number in (0, 2, 3, 4, 5):
        (tmp_path / "d" / "parts" / f"00000{number}.sha256").unlink()
    monkeypatch.setattr(Parts, "state", lambda self, part: "complete" if part == 1 else pytest.fail("it is not stored"))
    with pytest.raises(apac.InputError, match=r"of 6 parts, part 0 \(missing\), part 2 \(missing\), part 3"):
        merge_parts(tmp_path / "d", tmp_path / "d.csv")


def test_damaged_positions_in_the_list_are_refused(images, tmp_path):
    decide_files(file_classifier(), [str(images)], tmp_path / "d", part_size=2)
    files = read_job(tmp_path / "d").files
    for positions in ([0, 2**60, 2**62, 2**63], [2**63, 0, 0, 0]):
        (tmp_path / "d" / "files.offsets").write_bytes(array("Q", positions).tobytes())
        with pytest.raises(apac.StorageError, match=r"the list of files in .* is damaged"):
            files.read(0)


def test_more_parts_than_a_folder_holds_are_refused(images, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "JOB_PARTS", 5)
    with pytest.raises(apac.InputError, match="6 files in parts of 1 are more than 5 parts; choose larger parts"):
        decide_files(file_classifier(), [str(images)], tmp_path / "d", part_size=1)


def test_a_part_that_is_not_a_table_is_refused(images, tmp_path):
    pytest.importorskip("pyarrow")
    decide_files(file_classifier(), [str(images)], tmp_path / "d", format="parquet")
    read_job(tmp_path / "d").parts.write(0, b"PAR1 no table PAR1")
    with pytest.raises(apac.StorageError, match=r"000000\.parquet is damaged; remove the folder"):
        merge_parts(tmp_path / "d", tmp_path / "d.csv")


def test_a_job_that_was_interrupted_before_its_description_was_written_starts_again(images, tmp_path):
    store_list(tmp_path / "d", ["something else"])
    assert decide_files(file_classifier(), [str(images)], tmp_path / "d").decided == 6


def test_a_rank_that_must_not_list_waits_for_the_one_that_does(images, tmp_path):
    settings = settings_of(file_classifier(), None, "csv")
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        with Claims(tmp_path / "other") as claims:  # rank 0 reads the standard input
            open_job(tmp_path / "d", claims, settings, [str(images)])
        payload = json.loads((tmp_path / "d" / "job.json").read_text())
        (tmp_path / "d" / "job.json").write_text(json.dumps(payload | {"sources": ["-"]}))

    with Claims(tmp_path / "d" / "claims") as claims:
        job = open_job(tmp_path / "d", claims, settings, ["-"], is_first=False, wait=wait)
    assert (len(waits), job.files.count) == (1, 6)


def test_the_first_rank_does_not_list_again_what_another_rank_lists_meanwhile(images, tmp_path, monkeypatch):
    settings = settings_of(file_classifier(), None, "csv")
    listed: list[object] = []
    monkeypatch.setattr(job_module, "find_images", lambda sources: listed.append(sources) or find_images(sources))

    def wait(seconds: float) -> None:  # until another rank, which has claimed the listing, has stored it
        other.release(LISTING)
        open_job(tmp_path / "d", other, settings, [str(images)], is_first=False)

    with Claims(tmp_path / "d" / "claims") as other, Claims(tmp_path / "d" / "claims") as claims:
        assert other.take(LISTING)
        assert open_job(tmp_path / "d", claims, settings, [str(images)], wait=wait).files.count == 6
        assert len(listed) == 1
        open_job(tmp_path / "d", claims, settings, [str(images)])  # an older job is compared
        assert len(listed) == 2


def test_a_full_disk_is_one_sentence_and_the_job_continues_when_there_is_space(images, tmp_path):
    resource = pytest.importorskip("resource")
    decide_files(file_classifier(), [str(images)], tmp_path / "d")
    (tmp_path / "d" / "parts" / "000000.sha256").unlink()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))  # files end after 100 bytes, as on a full disk
    try:
        with pytest.raises(apac.StorageError, match=r"could not write .*000000.csv: File too large"):
            decide_files(file_classifier(), [str(images)], tmp_path / "d")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert decide_files(file_classifier(), [str(images)], tmp_path / "d").decided == 6
