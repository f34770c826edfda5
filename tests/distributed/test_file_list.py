"""The list of files: what sources stand for, and parts that are read by themselves."""

from __future__ import annotations

import io
import os
import sys
import tracemalloc
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace

import pytest

import apac
from apac import limits
from apac.data.folder_files import image_files
from apac.distributed import file_list
from apac.distributed.file_list import FileList, any_image, find_images, store_list

PATHS = ["a/1.png", "a/1.png", "line\nbreak.png", os.fsdecode(b"latin-\xe9.png"), "b/2.jpg"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = [
        "b.png",
        "a/2.jpg",
        "a/10.jpg",
        "a.b/1.PNG",
        "a/c/1.webp",
        "a.png",
        ".hidden.png",
        ".git/1.png",
        "notes.txt",
    ]
    for name in [*names, "photo.heic"]:
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "images" / "circle").symlink_to(tmp_path / "images")
    (tmp_path / "images" / "linked.png").symlink_to(tmp_path / "images" / "b.png")
    return tmp_path / "images"


def test_a_folder_has_the_files_and_the_order_of_classify_without_an_output_folder(folder):
    found = list(find_images([str(folder)]))
    assert found == [str(path) for path in image_files(folder)]
    assert len(found) == 8


def test_paths_are_relative_if_the_source_is(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert list(find_images(["."]))[:2] == ["a/10.jpg", "a/2.jpg"]


def test_patterns_lists_and_the_standard_input_are_sources(folder, tmp_path, monkeypatch):
    (tmp_path / "list").write_bytes(b"one.png\r\n\nlatin-\xe9.png")
    lines = io.BytesIO(b"two words.png\n")
    monkeypatch.setattr(file_list, "sys", SimpleNamespace(stdin=SimpleNamespace(buffer=lines)))
    found = list(find_images([f"{folder}/a/*.jpg", f"@{tmp_path}/list", "-", f"{folder}/b.png", f"{folder}/a*/c"]))
    assert found == [
        *(f"{folder}/a/10.jpg", f"{folder}/a/2.jpg", "one.png", os.fsdecode(b"latin-\xe9.png"), "two words.png"),
        *(f"{folder}/b.png", f"{folder}/a/c/1.webp"),
    ]


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("photos", "there is no file or folder photos"),
        ("@photos", "the list photos cannot be read: No such file"),
        ("@nul", "the list nul must have one path per line, got a NUL character in line 1; list them without -print0"),
    ],
)
def test_a_source_that_does_not_exist_is_refused(tmp_path, monkeypatch, source, sentence):
    monkeypatch.chdir(tmp_path)
    Path("nul").write_bytes(b"1.png\0002.png\n")
    with pytest.raises(apac.InputError, match=sentence):
        list(find_images([source]))


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_the_longest_path_of_a_list_is_read_and_a_longer_line_is_named(end, tmp_path):
    longest = "x" * limits.PATH_BYTES
    (tmp_path / "list").write_bytes(b"1.png\n\n" + longest.encode() + end)
    assert list(find_images([f"@{tmp_path}/list"])) == ["1.png", longest]
    for line in (longest.encode() + b"x" + end, longest.encode() + b"\r\r\r" + end, b"\r" * 2 * len(longest) + b"x"):
        (tmp_path / "list").write_bytes(b"1.png\n\n" + line)
        with pytest.raises(apac.InputError, match=r"list must have one path per line, got more than .* in line 3; end"):
            list(find_images([f"@{tmp_path}/list"]))


@pytest.mark.parametrize("content", [b"\0", b"x"], ids=["NUL", "x"])
def test_a_list_without_line_ends_is_not_read_into_memory(content, tmp_path, monkeypatch):
    lines = io.BytesIO(content * 5_000_000)
    monkeypatch.setattr(file_list, "sys", SimpleNamespace(stdin=SimpleNamespace(buffer=lines)))
    tracemalloc.start()
    with pytest.raises(apac.InputError, match=r"the standard input must have one path per line, got .* in line 1"):
        store_list(tmp_path, find_images(["-"]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1e6
    assert not list(tmp_path.iterdir())


def test_any_image_is_found_without_listing_a_folder(folder, tmp_path, monkeypatch):
    many = tmp_path / "many"
    many.mkdir()
    for number in range(50):
        (many / f"{number}.png").touch()
    entries, taken = os.scandir(many), []

    class Listing:
        def __enter__(self) -> Iterator[os.DirEntry[str]]:
            return (taken.append(entry) or entry for entry in entries)  # type: ignore[func-returns-value]

        def __exit__(self, *error: object) -> None:
            entries.close()

    with monkeypatch.context() as patch:
        patch.setattr(file_list, "os", SimpleNamespace(path=os.path, scandir=lambda folder: Listing()))
        assert any_image([str(many)]) == taken[0].path
        assert len(taken) == 1
    (tmp_path / "list").write_text("one.png\n")
    (tmp_path / "none").mkdir()
    assert any_image([str(folder)]) in list(find_images([str(folder)]))
    assert any_image(["-", f"{folder}/*.png", str(tmp_path / "none"), f"@{tmp_path}/list"]) == "one.png"
    assert any_image(["-", f"{folder}/*.png"]) is None


def test_parts_are_read_by_themselves_with_any_name(tmp_path):
    stored = store_list(tmp_path, PATHS, part_size=2)
    assert (stored.count, stored.parts) == (5, 3)
    assert [stored.read(part) for part in range(3)] == [PATHS[:2], PATHS[2:4], PATHS[4:]]
    assert [stored.files_of(part) for part in range(3)] == [2, 2, 1]
    assert list(stored) == PATHS
    assert store_list(tmp_path, PATHS[:4], part_size=2).parts == 2


def test_very_many_files_make_larger_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(file_list, "PART_SIZE", 2)
    monkeypatch.setattr(file_list, "MAX_PARTS", 3)
    names = [f"{number}.png" for number in range(13)]
    stored = store_list(tmp_path, names)
    assert (stored.part_size, stored.parts) == (6, 3)
    assert [stored.read(part) for part in range(3)] == [names[:6], names[6:12], names[12:]]


def test_the_list_of_many_files_is_not_held_in_memory(tmp_path):
    paths = (f"/archive/{number:09}.jpg" for number in count())
    tracemalloc.start()
    stored = store_list(tmp_path, islice(paths, 30_000))
    assert stored.first_difference(f"/archive/{number:09}.jpg" for number in range(30_000)) is None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1e6 < sys.getsizeof("/archive/000000000.jpg") * 30_000


def test_the_first_difference_is_named(tmp_path):
    stored = store_list(tmp_path, PATHS)
    assert stored.first_difference(PATHS) is None
    assert stored.first_difference(["a/1.png", "a/2.png"]) == "file 2 is a/1.png, not a/2.png"
    assert stored.first_difference([*PATHS, "c"]) == "file 6 is the end of the list, not c"


def test_a_damaged_list_is_refused(tmp_path):
    stored = store_list(tmp_path, PATHS, part_size=2)
    content = (tmp_path / "files.list").read_bytes()
    (tmp_path / "files.list").write_bytes(content.replace(b"2.jpg", b"3.jpg"))
    with pytest.raises(apac.StorageError, match="is damaged; remove the folder and start again"):
        list(stored)
    (tmp_path / "files.list").write_bytes(content[:-3])
    with pytest.raises(apac.StorageError, match="is damaged"):
        stored.read(2)
    with pytest.raises(apac.StorageError, match="is damaged"):
        FileList(tmp_path / "none", 5, "", 2).read(0)
    with pytest.raises(apac.StorageError, match="is damaged"):
        list(FileList(tmp_path / "none", 5, "", 2))


@pytest.mark.parametrize(
    ("paths", "sentence"),
    [
        ([], "no image files"),
        (["1.png", "x" * (limits.PATH_BYTES + 1)], r"the path x{500}… has more than .* bytes; rename its folders"),
        (["1.png"] * (limits.JOB_PARTS + 1), "1,000,001 files in parts of 1 are more than 1,000,000 parts"),
    ],
    ids=["none", "long", "many"],
)
def test_a_list_that_is_refused_leaves_nothing(paths, sentence, tmp_path):
    with pytest.raises(apac.InputError, match=sentence):
        store_list(tmp_path, paths, part_size=1)
    assert not list(tmp_path.iterdir())


def test_offsets_that_are_cut_anywhere_are_refused_in_one_sentence(tmp_path):
    files = store_list(tmp_path, PATHS, part_size=1)
    whole = (tmp_path / file_list.OFFSETS).read_bytes()
    for size in range(len(whole)):
        (tmp_path / file_list.OFFSETS).write_bytes(whole[:size])
        with pytest.raises(apac.StorageError, match=r"the list of files in .* is damaged; remove the folder"):
            files.read(len(PATHS) - 1)
    (tmp_path / file_list.OFFSETS).write_bytes(b"\xff" * len(whole))
    with pytest.raises(apac.StorageError, match="is damaged"):
        files.read(0)
