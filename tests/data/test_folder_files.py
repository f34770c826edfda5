"""Which files of a folder are used, and which are not and why."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import apac
from apac.data import folder, folder_files
from apac.data.folder_files import find_files
from apac.data.image_file import READS_AVIF
from image_folders import COLORS, gallery, paint


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_files_that_are_not_used_are_listed_by_reason(tmp_path):
    root = gallery(tmp_path / "p", 3)
    for name in ("IMG_1.heic", "IMG_2.HEIF", "raw.NEF", "drawing.svg", "scan.pdf", "notes.txt", ".DS_Store"):
        (root / "sky" / name).write_bytes(b"content")
    (root / "sky" / ".cache").mkdir()
    (root / "sky" / ".cache" / "1.png").write_bytes(b"content")
    paint(root / "alone.png", COLORS["sky"])
    (root / "readme.md").write_text("text")
    skipped = find_files(root).skipped
    assert {reason: names(paths) for reason, paths in skipped.items()} == {
        "outside of the class folders": ["alone.png"],
        "not an image": ["readme.md", "notes.txt"],
        "hidden": [".DS_Store", ".cache"],
        "HEIC": ["IMG_1.heic", "IMG_2.HEIF"],
        "raw camera": ["raw.NEF"],
        "SVG": ["drawing.svg"],
        "PDF": ["scan.pdf"],
    }
    assert (".avif" in folder_files.SUFFIXES, ".avif" in folder_files.OTHER_FORMATS) == (READS_AVIF, not READS_AVIF)


def test_folders_beside_train_and_test_are_listed_as_unused(tmp_path):
    for name in ("train", "test", "val", "more"):
        gallery(tmp_path / name, 2)
    files = find_files(tmp_path)
    assert files.test_folder == tmp_path / "test"
    assert files.unused == {tmp_path / "more": 6, tmp_path / "val": 6}


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (["Leaf/1.png"], "has the folders 'Leaf' and 'leaf', which differ only by case; merge them, or rename one"),
        (["test/sky/1.png"], r"test has subfolders, but .* has no folder train with subfolders; add one, or rename"),
        (["birds/1.heic", "birds/2.heic"], r"the class folder .*birds has no images that can be read \(2 HEIC\)"),
        (["train/sky/1.png", "test/Sky/1.png"], "has the class 'Sky', which .*train does not have; rename it to 'sky'"),
    ],
)
def test_a_folder_with_an_unclear_layout_is_rejected(made, sentence, tmp_path):
    root = gallery(tmp_path / "p", 2)
    for name in made:
        paint(root / "new.png", COLORS["sky"])
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "new.png").rename(root / name)
    with pytest.raises(apac.InputError, match=sentence):
        find_files(root)


def test_the_same_picture_in_train_and_test_or_in_two_classes_is_found_and_names_alone_do_not_matter(tmp_path):
    root = tmp_path / "p"
    gallery(root / "train", 3)
    for name, color in COLORS.items():
        paint(root / "test" / name / "00.png", color, (33, 33), seed=99)  # the name of a training image, other pixels
    paint(root / "train" / "sky" / "far" / "00.png", COLORS["sky"], seed=98)
    dataset = folder.load(root)
    assert (dataset.summary.repeated, dataset.summary.contradictory) == ((), ())
    assert len(dataset.train_images) == 10 and len(set(dataset.train_files)) == 10
    shutil.copy(root / "train" / "sky" / "00.png", root / "test" / "sky" / "renamed.png")
    shutil.copy(root / "train" / "sky" / "00.png", root / "train" / "sky" / "twice.png")
    shutil.copy(root / "train" / "sky" / "00.png", root / "train" / "apple" / "wrong.png")
    summary = folder.load(root).summary
    assert {path.name for pair in summary.contradictory for path in pair} >= {"wrong.png", "00.png"}
    (root / "train" / "apple" / "wrong.png").unlink()
    summary = folder.load(root).summary
    assert summary.contradictory == ()
    assert summary.repeated == ((root / "test" / "sky" / "renamed.png", root / "train" / "sky" / "00.png"),)
