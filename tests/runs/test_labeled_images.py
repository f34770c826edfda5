"""The images on which a run is evaluated."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import apac
from apac import data
from apac.runs.labeled_images import images_held_out, images_to_test
from image_folders import COLORS, gallery, paint
from own_networks import linear

CONFIG = apac.TrainConfig(epochs=1, batch_size=8, validation_fraction=0.1)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of images and the folder of a run on it."""
    root = tmp_path_factory.mktemp("photos")
    gallery(root / "photos", 12)
    apac.train("own_networks:linear", root / "photos", apac.Flip(), config=CONFIG, out=root / "run")
    return root / "photos", root / "run"


def test_the_files_of_the_own_folder_are_those_that_training_held_out(photos):
    folder, run = photos[0], apac.load(photos[1])
    tested = images_to_test(run)
    dataset = data.folder.load(folder)
    assert (tested.own, tested.data) == (True, str(folder))
    assert torch.equal(tested.images, run.normalize(dataset.test_images))
    assert torch.equal(tested.labels, dataset.test_labels)
    assert [name.partition("/")[0] for name in tested.files] == [run.classes[c] for c in tested.labels]
    assert all((folder / name).is_file() for name in tested.files)
    assert len(tested.files) < 36


def test_all_files_of_another_folder_are_evaluated_and_classes_are_matched_by_name(photos, tmp_path):
    run = apac.load(photos[1])
    paint(tmp_path / "sky" / "a.png", COLORS["sky"])
    paint(tmp_path / "apple" / "a.png", COLORS["apple"])
    paint(tmp_path / "apple" / "deep" / "a.png", COLORS["apple"])
    tested = images_to_test(run, tmp_path)
    assert tested.files == ("apple/a.png", "apple/deep/a.png", "sky/a.png")
    assert [run.classes[c] for c in tested.labels] == ["apple", "apple", "sky"]
    assert not tested.own
    paint(tmp_path / "Leaf" / "a.png", COLORS["leaf"])
    paint(tmp_path / "sea" / "a.png", COLORS["sky"])
    with pytest.raises(apac.InputError, match="does not have: Leaf, sea; it has apple, leaf, sky"):
        images_to_test(run, tmp_path)


def test_of_a_folder_with_train_and_test_the_test_part_is_evaluated(photos, tmp_path):
    gallery(tmp_path / "train", 2)
    paint(tmp_path / "test" / "leaf" / "1.png", COLORS["leaf"])
    assert images_to_test(apac.load(photos[1]), tmp_path).files == ("test/leaf/1.png",)


def test_the_training_folder_is_recognized_where_it_was_moved(photos, tmp_path):
    run = apac.load(photos[1])
    moved = Path(shutil.copytree(photos[0], tmp_path / "elsewhere"))
    tested = images_to_test(run, moved)
    assert tested.own
    assert tested.files == images_to_test(run).files
    (moved / tested.files[0]).unlink()  # the training images are the same
    assert images_to_test(run, moved).files == tested.files[1:]
    paint(moved / "sky" / "00.png", (0, 0, 0))  # one of them is another
    assert len(images_to_test(run, moved).files) == 35


def test_a_folder_of_all_classes_is_not_taken_for_the_training_folder_of_a_run_on_a_data_set(digits, tmp_path):
    for index in range(60):
        path = tmp_path / str(int(digits[1][index])) / f"{index}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray((255 * digits[0][index, 0]).to(torch.uint8).numpy()).save(path)
    tested = images_to_test(apac.load("mnist-cnn"), tmp_path)
    assert (len(tested.files), tested.own) == (60, False)


def test_a_data_set_by_name_needs_classes_and_a_shape_of_the_run(photos, monkeypatch):
    whole = data.load("mnist-5k")
    monkeypatch.setattr(data, "load", lambda name, **options: whole)
    tested = images_to_test(apac.load("mnist-cnn"), "mnist-5k")
    assert (tested.own, tested.data, tested.files) == (False, "mnist-5k", ())
    assert torch.equal(tested.labels, whole.test_labels)
    with pytest.raises(apac.InputError, match="data set mnist-5k has classes that the run does not have: 0, 1, 2"):
        images_to_test(apac.load(photos[1]), "mnist-5k")
    order = torch.arange(9, -1, -1)
    other = replace(whole, classes=tuple(reversed(whole.classes)), test_labels=order[whole.test_labels])
    monkeypatch.setattr(data, "load", lambda name, **options: other)
    assert torch.equal(images_to_test(apac.load("mnist-cnn"), "mnist-5k").labels, whole.test_labels)


def test_a_run_on_digits_converts_the_files_of_a_folder_to_the_format_of_mnist(digits, tmp_path):
    pixels = 255 - (255 * digits[0][0, 0]).to(torch.uint8).numpy()  # dark on white
    (tmp_path / str(int(digits[1][0]))).mkdir()
    Image.fromarray(pixels).resize((112, 112)).save(tmp_path / str(int(digits[1][0])) / "1.png")
    tested = images_to_test(apac.load("mnist-cnn"), tmp_path)
    assert tested.images[0, 0, 0].max() == 0  # a black margin
    assert tested.labels.tolist() == digits[1][:1].tolist()


def test_other_data_that_cannot_be_read_are_refused_in_one_sentence(photos, tmp_path, random):
    run = apac.load(photos[1])
    with pytest.raises(apac.InputError, match="there is no data set 'nothing'"):
        images_to_test(run, "nothing")
    paint(tmp_path / "sky" / "1.png", COLORS["sky"])
    (tmp_path / "sky" / "2.png").write_text("no image")
    with pytest.raises(apac.InputError, match=r'2\.png cannot be read .* skip them with on_unreadable="skip"'):
        images_to_test(run, tmp_path)
    assert images_to_test(run, tmp_path, on_unreadable="skip").files == ("sky/1.png",)
    images = torch.rand(20, 3, 8, 8, generator=random)
    config = apac.TrainConfig(epochs=1)
    floats = apac.train(linear((3, 8, 8), 2), (images, torch.arange(20) % 2), apac.Flip(), config=config)
    with pytest.raises(apac.InputError, match="trained on float images and cannot prepare image files"):
        images_to_test(floats, photos[0])
    with pytest.raises(apac.InputError, match="data in memory, which is not stored; pass data="):
        images_to_test(floats)


def test_the_held_out_images_are_the_training_images_that_the_run_kept_out(photos, tmp_path):
    folder, run = photos[0], apac.load(photos[1])
    held_out = images_held_out(run)
    dataset = data.folder.load(folder)
    assert len(held_out.files) == round(0.1 * len(dataset.train_images))
    assert not set(held_out.files) & set(images_to_test(run).files)  # never the test set
    positions = [[path.relative_to(folder).as_posix() for path in dataset.train_files].index(f) for f in held_out.files]
    assert torch.equal(held_out.images, run.normalize(dataset.train_images[positions]))
    assert torch.equal(held_out.labels, dataset.train_labels[positions])
    wrong = run.classifier(apac.FixedPasses(1)).plain(held_out.images).argmax(1) != held_out.labels
    assert float(wrong.float().mean()) == pytest.approx(run.history[-1].validation_error)
    moved = Path(shutil.copytree(folder, tmp_path / "elsewhere"))
    assert images_held_out(run, data=moved).files == held_out.files
    paint(moved / "sky" / "00.png", (0, 0, 0))  # it is a training image
    with pytest.raises(apac.InputError, match="elsewhere does not have the images on which this run was trained"):
        images_held_out(run, data=moved)


def test_held_out_images_come_from_train_where_a_folder_has_train_and_test(tmp_path):
    gallery(tmp_path / "photos" / "train", 10)
    gallery(tmp_path / "photos" / "test", 2)
    run = apac.train("own_networks:linear", tmp_path / "photos", apac.Flip(), config=CONFIG)
    files = images_held_out(run).files
    assert len(files) == 3
    assert all(name.startswith("train/") for name in files)


def test_the_held_out_images_of_a_data_set_are_split_by_the_seed_of_the_run(monkeypatch):
    whole = data.load("mnist-5k")
    monkeypatch.setattr(data, "load", lambda name, **options: whole)
    run = apac.load("mnist-cnn")
    count = round(run.config.validation_fraction * len(whole.train_images))
    assert len(images_held_out(run).labels) == count
    other = replace(run, config=replace(run.config, seed=1))
    assert not torch.equal(images_held_out(run).labels, images_held_out(other).labels)


def test_a_run_without_held_out_images_says_how_to_get_some(photos, random):
    run = apac.load(photos[1])
    none = replace(run, config=replace(run.config, validation_fraction=0.0))
    with pytest.raises(apac.InputError, match=r"held out no training images .* with validation_fraction=0.1"):
        images_held_out(none)
    few = replace(run, config=replace(run.config, validation_fraction=0.001))
    with pytest.raises(apac.InputError, match="held out none of 29 training images"):
        images_held_out(few)
    with pytest.raises(apac.InputError, match=r"belong to its training data, .*photos; omit data=mnist"):
        images_held_out(run, data="mnist")
    images = torch.rand(20, 3, 8, 8, generator=random)
    floats = apac.train(linear((3, 8, 8), 2), (images, torch.arange(20) % 2), apac.Flip(), config=CONFIG)
    with pytest.raises(apac.InputError, match=r"data in memory, .* pass images .* to apac.tune"):
        images_held_out(floats)
