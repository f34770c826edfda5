"""Ranks that disagree, or of which one cannot take part: all of them raise the same error before they decide."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import apac
from apac.distributed import file_list
from apac.distributed import job as job_module
from apac.distributed import settings as settings_module
from apac.distributed.agreement import check_agreement
from apac.distributed.deciding import decide_files
from apac.distributed.ranks.group import Group
from apac.distributed.settings import settings_of
from apac.runs.file_classifier import FileClassifier
from file_jobs import file_classifier, seeded, write_images
from threaded_ranks import on_threads

RANKS = 3
REMEDY = "start all of them with the same command, version and data."


def refused(check: Callable[[Group], None]) -> list[str]:
    """Return the sentence of each rank's error, or "" if it has none."""

    def run(group: Group) -> str:
        try:
            check(group)
        except apac.ApacError as error:
            assert error.agreed
            return str(error)
        return ""

    return on_threads(RANKS, run)


def agree(
    group: Group, out: Path, sources: Sequence[Path], decider: FileClassifier | None = None, part_size: int = 2
) -> None:
    settings = settings_of(decider or file_classifier(), None, "csv")
    check_agreement(group, settings, list(map(str, sources)), out, part_size=part_size)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images", 6)


def test_ranks_that_agree_leave_an_empty_folder_to_decide_in(images, tmp_path):
    assert refused(lambda group: agree(group, tmp_path / "d", [images])) == [""] * RANKS
    assert list((tmp_path / "d").iterdir()) == []
    assert decide_files(file_classifier(), [str(images)], tmp_path / "d", part_size=2).decided == 6
    assert refused(lambda group: agree(group, tmp_path / "d", [images])) == [""] * RANKS


def with_last(group: Group, value: Any, default: Any) -> Any:
    return value if group.rank == RANKS - 1 else default


def test_another_seed_rule_or_part_size_of_one_rank_is_refused_by_all(images, tmp_path):
    other = replace(file_classifier(), fit="pad")
    for check, difference in (
        (lambda group: agree(group, tmp_path / "d", [images], seeded(file_classifier(), group.rank)), "seed is 0"),
        (lambda group: agree(group, tmp_path / "d", [images], with_last(group, other, None)), "fit is crop"),
        (lambda group: agree(group, tmp_path / "d", [images], part_size=group.rank + 1), "part size is 1"),
        (
            lambda group: agree(group, tmp_path / "d", [images / with_last(group, "a", "b")]),
            f"list of sources is ['{images / 'b'}']",
        ),
    ):
        sentences = refused(check)
        assert sentences[0].startswith(f"the ranks disagree: {difference} on rank 0 and ")
        assert sentences[0].endswith(REMEDY)
        assert sentences == sentences[:1] * RANKS
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(("changed", "package"), [("code_version", "apac"), ("installed_version", "torch")])
def test_another_version_of_one_rank_is_refused_by_all(images, tmp_path, monkeypatch, changed, package):
    settings = settings_of(file_classifier(), None, "csv")
    with monkeypatch.context() as patch:
        patch.setattr(settings_module, changed, lambda *name: "9.9")
        newer = settings_of(file_classifier(), None, "csv")
    sentences = refused(
        lambda group: check_agreement(
            group, with_last(group, newer, settings), [str(images)], tmp_path / "d", part_size=None
        )
    )
    assert sentences[0].startswith(f"the ranks disagree: version of {package} is ")
    assert f"on rank 0 and 9.9 on rank 2; {REMEDY}" in sentences[0]
    assert sentences == sentences[:1] * RANKS


def test_other_data_of_one_rank_are_refused_by_all(images, tmp_path, monkeypatch):
    sizes = iter((10, 10, 20, 10))  # found by the first rank, and seen by all
    seen = SimpleNamespace(path=os.path, stat=lambda path: SimpleNamespace(st_size=next(sizes)))
    monkeypatch.setattr(job_module, "os", seen)
    (sentence,) = set(refused(lambda group: agree(group, tmp_path / "d", [images])))
    assert re.match(r"on rank . of 3, the data differ from those of the job: .*\.png has 20 bytes, not 10\.", sentence)


def test_a_rank_without_the_data_or_that_cannot_write_is_refused_by_all(images, tmp_path):
    nothing = tmp_path / "nothing"
    (sentence,) = set(refused(lambda group: agree(group, tmp_path / "d", [with_last(group, nothing, images)])))
    assert sentence == (
        f"on rank 2 of 3, there is no file or folder {nothing}; give images, folders, a quoted pattern, @list or -."
    )
    (tmp_path / "file").touch()
    (sentence,) = set(
        refused(lambda group: agree(group, with_last(group, tmp_path / "file", tmp_path / "d"), [images]))
    )
    assert sentence == f"on rank 2 of 3, {tmp_path / 'file'} is a file; the decisions need a folder."
    if Path("/sys/kernel").is_dir():  # where not even root can write
        (sentence,) = set(
            refused(lambda group: agree(group, Path(with_last(group, "/sys/apac", tmp_path / "d")), [images]))
        )
        assert sentence.startswith("on rank 2 of 3, could not write to /sys/apac/claims: ")


def test_another_job_in_the_folder_is_refused_by_all(images, tmp_path):
    decide_files(file_classifier(), [str(images)], tmp_path / "d", part_size=2)
    decider = seeded(file_classifier(), 7)
    (sentence,) = set(refused(lambda group: agree(group, tmp_path / "d", [images], decider)))
    assert f"{tmp_path / 'd'} has another job: its seed is 0, not 7; repeat the command" in sentence
    (images / "a" / "00000.png").write_bytes(b"other data")
    (sentence,) = set(refused(lambda group: agree(group, tmp_path / "d", [images])))
    assert "the data differ from those of the job" in sentence


def test_a_folder_is_not_listed_by_every_rank(images, tmp_path, monkeypatch):
    looked = []

    def scandir(folder: str) -> Any:
        looked.append(folder)
        return os.scandir(folder)

    monkeypatch.setattr(file_list, "os", SimpleNamespace(path=os.path, scandir=scandir))
    assert refused(lambda group: agree(group, tmp_path / "d", [images])) == [""] * RANKS
    assert len(looked) == 2  # the folder and one of its subfolders, by one rank


def test_a_folder_that_the_first_rank_cannot_list_is_refused_by_all(images, tmp_path, monkeypatch):
    def scandir(folder: str) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(file_list, "os", SimpleNamespace(path=os.path, scandir=scandir))
    (sentence,) = set(refused(lambda group: agree(group, tmp_path / "d", [images])))
    assert sentence == f"the folder {images} cannot be listed: Permission denied; change its permissions, or omit it."


def test_patterns_and_the_standard_input_are_not_listed_by_every_rank(images, tmp_path):
    assert refused(lambda group: agree(group, tmp_path / "d", [images / "*" / "*.png"])) == [""] * RANKS
    assert refused(lambda group: agree(group, tmp_path / "d", [Path("-")])) == [""] * RANKS


def test_a_single_process_checks_nothing(tmp_path):
    agree(Group(), tmp_path / "d", [tmp_path / "nothing"])
