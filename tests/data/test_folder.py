"""Image folders: classes, the split, and files that cannot be read."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from PIL import Image

import apac
from apac import limits
from apac.data import folder
from apac.data.folder import MAX_SIZE, read_headers
from apac.data.normalize import Standardization, normalization_from
from image_folders import COLORS, gallery, paint


def test_classes_are_the_subfolders_and_a_fifth_of_each_is_held_out(tmp_path):
    dataset = folder.load(gallery(tmp_path / "p", 30), size=32)
    assert dataset.classes == ("apple", "leaf", "sky")
    assert dataset.image_shape == (3, 32, 32) and dataset.train_images.dtype == torch.uint8
    trained, tested = (torch.bincount(labels) for labels in (dataset.train_labels, dataset.test_labels))
    assert (trained + tested).tolist() == [30] * 3
    assert ((tested >= 1) & (tested <= 12)).all()  # 6 on average
    for images, labels in ((dataset.train_images, dataset.train_labels), (dataset.test_images, dataset.test_labels)):
        for image, label in zip(images.float(), labels.tolist(), strict=True):
            mean = image.mean((1, 2)).numpy()
            np.testing.assert_allclose(mean, COLORS[dataset.classes[label]], atol=8)


def test_a_file_stays_in_its_part_when_others_are_added(tmp_path):
    root = gallery(tmp_path / "p", 20)
    before = folder.load(root, size=32)
    for i in range(20, 30):
        paint(root / "leaf" / f"{i}.png", COLORS["leaf"], seed=i)
    (root / "sky" / "03.png").unlink()
    after = folder.load(root, size=32)
    old, new = (
        {side: {image.numpy().tobytes() for image in getattr(dataset, f"{side}_images")} for side in ("train", "test")}
        for dataset in (before, after)
    )
    assert not old["train"] & new["test"] and not old["test"] & new["train"]
    assert len(old["test"] & new["test"]) >= len(old["test"]) - 1 >= 2


@pytest.mark.parametrize(("count", "sides"), [(2, (1, 1)), (3, (2, 1))])
def test_a_small_class_has_an_image_in_each_part(count, sides, tmp_path):
    dataset = folder.load(gallery(tmp_path / "p", count))
    assert torch.bincount(dataset.train_labels).min() >= 1 and torch.bincount(dataset.test_labels).min() >= 1
    assert len(dataset.train_images) + len(dataset.test_images) == 3 * sum(sides)


def test_hidden_files_are_ignored_and_suffixes_may_be_upper_case(tmp_path):
    root = gallery(tmp_path / "p", 3)
    (root / "sky" / "._00.png").write_bytes(b"metadata")
    (root / ".cache").mkdir()
    paint(root / "sky" / ".ipynb_checkpoints" / "00-copy.png", COLORS["sky"])
    paint(root / "sky" / "far" / "LARGE.JPG", COLORS["sky"])
    dataset = folder.load(root)
    assert len(dataset.train_images) + len(dataset.test_images) == 10


def test_gray_images_stay_gray_and_one_color_image_makes_all_of_them_rgb(tmp_path):
    root = gallery(tmp_path / "p", mode="L")
    assert folder.load(root, size=20).image_shape == (1, 20, 20)
    paint(root / "sky" / "colored.png", (1, 2, 200))
    assert folder.load(root, size=20).image_shape == (3, 20, 20)


@pytest.mark.parametrize("name", ["val", "Test"])
def test_folders_named_train_and_test_are_the_split(name, tmp_path):
    gallery(tmp_path / "p" / "train", 4)
    gallery(tmp_path / "p" / name, 2)
    dataset = folder.load(tmp_path / "p")
    assert (len(dataset.train_images), len(dataset.test_images), len(dataset.classes)) == (12, 6, 3)
    paint(tmp_path / "p" / name / "sea" / "1.png", (0, 0, 99))
    with pytest.raises(apac.InputError, match=r"has the class 'sea', which .*train does not have"):
        folder.load(tmp_path / "p")


def test_unreadable_files_are_named_and_rejected_or_skipped(tmp_path, caplog):
    root = gallery(tmp_path / "p")
    (root / "sky" / "broken.jpg").write_bytes(b"no image")
    cut = paint(root / "leaf" / "cut.png", (0, 200, 0), (64, 64))
    cut.write_bytes(cut.read_bytes()[:500])
    (root / "sky" / "notes.txt").write_text("not an image, and not meant as one")
    animated = [Image.new("L", (9, 9), shade) for shade in (0, 99)]
    animated[0].save(root / "apple" / "moving.gif", save_all=True, append_images=animated[1:])
    with pytest.raises(apac.InputError) as refused:
        folder.load(root)
    for words in (
        "broken.jpg cannot be read",
        "cut.png cannot be read",
        "moving.gif has several frames",
        'on_unreadable="skip"',
    ):
        assert words in str(refused.value)
    for number in range(6):
        (root / "sky" / f"also {number}.jpg").write_bytes(b"not this either")
    with caplog.at_level(logging.WARNING):
        dataset = folder.load(root, on_unreadable="skip")
    for name in ("broken.jpg", "cut.png", "moving.gif", *(f"also {number}.jpg" for number in range(6))):
        assert name in caplog.text
    assert len(dataset.train_images) + len(dataset.test_images) == 30


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda root: (root / "empty").mkdir(), r"the class folder .*empty has no images"),
        (
            lambda root: [(root / name).rename(root.parent / name) for name in ("leaf", "sky")],
            "one class only, 'apple'",
        ),
        (lambda root: [(root / name).rename(root.parent / name) for name in COLORS], "has no subfolders"),
        (lambda root: root.rename(root.parent / "gone"), "there is no folder"),
        (
            lambda root: gallery(root / "train", 2),
            r"train has subfolders, but .* has no test folder \(test,",
        ),
    ],
)
def test_a_folder_without_classes_is_rejected_in_one_sentence(damage, sentence, tmp_path):
    root = gallery(tmp_path / "p", 3)
    damage(root)
    with pytest.raises(apac.InputError, match=sentence):
        folder.load(root)


def test_a_class_without_readable_images_is_rejected(tmp_path):
    root = gallery(tmp_path / "p", 3)
    for path in (root / "sky").iterdir():
        path.write_bytes(b"")
    with pytest.raises(apac.InputError, match=r"the class 'sky' .* has no readable image to train on"):
        folder.load(root, on_unreadable="skip")


def test_a_header_that_does_not_end_is_not_read_to_learn_the_size_of_the_images(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "READS", 5000)
    paint(tmp_path / "a.png", (90, 90, 90), size=(40, 30))
    (tmp_path / "b.ppm").write_bytes(b"P6\n#" + b"x" * 6000 + b"\n2 2 255\n" + bytes(12))
    assert read_headers([tmp_path / "a.png"]).shorter_side == 30
    assert read_headers([tmp_path / "b.ppm"]).shorter_side == MAX_SIZE  # as if it were not there


def test_standardized_channels_have_mean_0_and_deviation_1_and_are_restored(random):
    images = torch.randint(0, 200, (20, 3, 5, 5), generator=random).byte()
    images[:, 1] = 7
    fitted = Standardization.fit(images)
    pixels = fitted.standardize(fitted.apply(images)).transpose(0, 1).flatten(1)
    torch.testing.assert_close(pixels.mean(1), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(pixels.std(1, correction=0), torch.tensor([1.0, 0.0, 1.0]), atol=1e-5, rtol=0)
    again = normalization_from(fitted.kind, fitted.tensors())
    assert torch.equal(again.standardize(again.apply(images)), fitted.standardize(fitted.apply(images)))
    with pytest.raises(apac.InputError, match="fitted on 3 channels, got 1"):
        fitted.apply(images[:, :1])
