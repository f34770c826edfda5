"""A person's own images, from a folder to a decision."""

from __future__ import annotations

import csv
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import apac
from apac import cli
from apac.data import folder
from apac.data.normalize import Standardizing, normalization_from
from apac.runs.run import images_to_test

COLORS = {"apple": (200, 30, 30), "leaf": (30, 180, 40), "sky": (60, 90, 220)}


def paint(
    path: Path, color: tuple[int, ...], size: tuple[int, int] = (40, 30), mode: str = "RGB", seed: int = 0
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(-25, 25, (size[1], size[0], 3))
    pixels = (np.array(color) + noise).clip(0, 255).astype(np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


def gallery(root: Path, count: int = 10, mode: str = "RGB") -> Path:
    for name, color in COLORS.items():
        for i in range(count):
            suffix = ("png", "jpg", "webp")[i % 3] if mode == "RGB" else "png"
            paint(root / name / f"{i:02}.{suffix}", color, (24 + 7 * i, 40 + i), mode, seed=i)
    return root


def test_classes_are_the_folders_and_a_fifth_of_each_is_kept_to_test(tmp_path):
    dataset = folder.load(gallery(tmp_path / "p", 60))
    assert dataset.classes == ("apple", "leaf", "sky")
    assert dataset.image_shape == (3, 32, 32) and dataset.train_images.dtype == torch.uint8
    trained, tested = (torch.bincount(labels) for labels in (dataset.train_labels, dataset.test_labels))
    assert (trained + tested).tolist() == [60] * 3
    assert ((tested >= 4) & (tested <= 21)).all()  # 12 on average
    for images, labels in ((dataset.train_images, dataset.train_labels), (dataset.test_images, dataset.test_labels)):
        for image, label in zip(images.float(), labels.tolist(), strict=True):
            mean = image.mean((1, 2)).numpy()
            np.testing.assert_allclose(mean, COLORS[dataset.classes[label]], atol=8)


def test_a_file_keeps_its_side_of_the_split_when_others_come(tmp_path):
    root = gallery(tmp_path / "p", 20)
    before = folder.load(root)
    for i in range(20, 50):
        paint(root / "leaf" / f"{i}.png", COLORS["leaf"], seed=i)
    (root / "sky" / "03.png").unlink()
    after = folder.load(root)
    old, new = (
        {side: {image.numpy().tobytes() for image in getattr(dataset, f"{side}_images")} for side in ("train", "test")}
        for dataset in (before, after)
    )
    assert not old["train"] & new["test"] and not old["test"] & new["train"]
    assert len(old["test"] & new["test"]) >= len(old["test"]) - 1 >= 2


@pytest.mark.parametrize(("count", "sides"), [(2, (1, 1)), (3, (2, 1))])
def test_a_small_class_has_an_image_on_each_side(count, sides, tmp_path):
    dataset = folder.load(gallery(tmp_path / "p", count))
    assert torch.bincount(dataset.train_labels).min() >= 1 and torch.bincount(dataset.test_labels).min() >= 1
    assert len(dataset.train_images) + len(dataset.test_images) == 3 * sum(sides)


def test_hidden_files_are_no_images_and_suffixes_may_be_large(tmp_path):
    root = gallery(tmp_path / "p", 3)
    (root / "sky" / "._00.png").write_bytes(b"of a file system")
    (root / ".cache").mkdir()
    paint(root / "sky" / ".ipynb_checkpoints" / "00-copy.png", COLORS["sky"])
    paint(root / "sky" / "far" / "LARGE.JPG", COLORS["sky"])
    dataset = folder.load(root)
    assert len(dataset.train_images) + len(dataset.test_images) == 10


def test_gray_images_stay_gray_and_one_colored_image_makes_all_colored(tmp_path):
    root = gallery(tmp_path / "p", mode="L")
    assert folder.load(root).image_shape == (1, 32, 32)
    paint(root / "sky" / "colored.png", (1, 2, 200))
    assert folder.load(root).image_shape == (3, 32, 32)


@pytest.mark.parametrize("name", ["test", "val", "validation", "Test"])
def test_folders_train_and_test_are_the_split_that_people_made(name, tmp_path):
    gallery(tmp_path / "p" / "train", 4)
    gallery(tmp_path / "p" / name, 2)
    dataset = folder.load(tmp_path / "p")
    assert (len(dataset.train_images), len(dataset.test_images), len(dataset.classes)) == (12, 6, 3)
    paint(tmp_path / "p" / name / "sea" / "1.png", (0, 0, 99))
    with pytest.raises(apac.InputError, match=r"has the class 'sea', which .*train lacks"):
        folder.load(tmp_path / "p")


def test_corrupt_files_are_named_and_refused_or_skipped(tmp_path, caplog):
    root = gallery(tmp_path / "p")
    (root / "sky" / "broken.jpg").write_bytes(b"no image")
    cut = paint(root / "leaf" / "cut.png", (0, 200, 0), (64, 64))
    cut.write_bytes(cut.read_bytes()[:500])
    (root / "sky" / "notes.txt").write_text("not an image, and not meant as one")
    animated = [Image.new("L", (9, 9), shade) for shade in (0, 99)]
    animated[0].save(root / "apple" / "moving.gif", save_all=True, append_images=animated[1:])
    with pytest.raises(apac.InputError) as refused:
        folder.load(root)
    for words in ("broken.jpg cannot be read", "cut.png cannot be read", "moving.gif has 2 frames", "--corrupt skip"):
        assert words in str(refused.value)
    for number in range(6):
        (root / "sky" / f"also {number}.jpg").write_bytes(b"nor this")
    with caplog.at_level(logging.WARNING):
        dataset = folder.load(root, corrupt="skip")
    for name in ("broken.jpg", "cut.png", "moving.gif", *(f"also {number}.jpg" for number in range(6))):
        assert name in caplog.text
    assert len(dataset.train_images) + len(dataset.test_images) == 30


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda root: (root / "empty").mkdir(), r"the class folder .*empty has no image in it"),
        (
            lambda root: [(root / name).rename(root.parent / name) for name in ("leaf", "sky")],
            "one class only, 'apple'",
        ),
        (lambda root: [(root / name).rename(root.parent / name) for name in COLORS], "has no sub-folders"),
        (lambda root: root.rename(root.parent / "gone"), "there is no folder"),
        (
            lambda root: gallery(root / "train", 2),
            r"train has sub-folders, but .* has no folder to test on, called test,",
        ),
    ],
)
def test_a_folder_that_cannot_serve_is_refused_in_one_sentence(spoil, sentence, tmp_path):
    root = gallery(tmp_path / "p", 3)
    spoil(root)
    with pytest.raises(apac.InputError, match=sentence):
        folder.load(root)


def test_a_class_with_nothing_readable_is_refused(tmp_path):
    root = gallery(tmp_path / "p", 3)
    for path in (root / "sky").iterdir():
        path.write_bytes(b"")
    with pytest.raises(apac.InputError, match=r"the class 'sky' .* has no readable image to train on"):
        folder.load(root, corrupt="skip")


def test_standardized_channels_have_mean_0_and_deviation_1_and_are_restored(random):
    images = torch.randint(0, 200, (20, 3, 5, 5), generator=random).byte()
    images[:, 1] = 7
    fitted = Standardizing.fit(images)
    pixels = fitted.apply(images).transpose(0, 1).flatten(1)
    torch.testing.assert_close(pixels.mean(1), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(pixels.std(1, correction=0), torch.tensor([1.0, 0.0, 1.0]), atol=1e-5, rtol=0)
    again = normalization_from(fitted.kind, fitted.tensors())
    assert torch.equal(again.apply(images), fitted.apply(images))
    with pytest.raises(apac.InputError, match="is for 3 channels, got 1"):
        fitted.apply(images[:, :1])


def call(*arguments: object):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def test_the_command_trains_on_a_folder_evaluates_it_and_classifies_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = gallery(tmp_path / "photos", 12)
    result = call("train", "--data", "photos", "--out", "run", "--epochs", 12, "--batch", 8, "--schedule", "cosine")
    assert result.exit_code == 0, result.output
    run = apac.load("run")
    assert run.classes == ("apple", "leaf", "sky") and run.image_shape == (3, 32, 32)
    assert run.config.data == str(root) and run.config.deformation == apac.presets.cifar10()

    result = call("evaluate", "run", "--passes", "1,8")
    assert result.exit_code == 0, result.output
    assert f"{len(images_to_test(run)[1])} test images" in result.stdout

    files = [paint(tmp_path / f"new {i}.jpg", COLORS[name], (90, 50), seed=99) for i, name in enumerate(COLORS)]
    result = call("classify", "run", *files, "--csv", "out.csv", "--passes", 16)
    assert result.exit_code == 0, result.output
    with (tmp_path / "out.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert [row["label"] for row in rows] == list(COLORS)
    assert [row["image"] for row in rows] == [str(path) for path in files]
    assert {row["passes"] for row in rows} == {"16"} and all(float(row["margin"]) > 0 for row in rows)

    paint(root / "sea" / "1.png", (0, 0, 99))
    paint(root / "sea" / "2.png", (0, 0, 99))
    result = call("evaluate", "run")
    assert result.exit_code == 2
    assert "has other classes than the run was trained on: sea; train it again" in result.stderr
    root.rename(tmp_path / "elsewhere")
    assert apac.load("run").classes == run.classes  # the images are not needed to decide others
    with pytest.raises(apac.InputError, match="there is no folder"):
        images_to_test(run)


def test_a_training_is_not_gone_on_with_on_other_images(tmp_path, monkeypatch):
    root = gallery(tmp_path / "photos", 6)
    config = apac.TrainConfig(str(root), "cnn", epochs=2, batch=4)
    monkeypatch.setattr("apac.training.loop.advance", stop_soon)
    with pytest.raises(KeyboardInterrupt):
        apac.train(config, tmp_path / "run")
    monkeypatch.undo()
    paint(root / "sky" / "new.png", (50, 80, 230))
    with pytest.raises(apac.InputError, match=r"are not those that the training in .* began with"):
        apac.train(config, tmp_path / "run", resume=True)
    (root / "sky" / "new.png").unlink()
    assert len(apac.train(config, tmp_path / "run", resume=True).history) == 2


def stop_soon(state, config, *given, after_step, **more):
    from apac.training.checkpoint import Stopped

    after_step.stop.asked = True
    with pytest.raises(Stopped):
        after_step(state)
    raise Stopped


def test_a_class_that_is_held_out_whole_is_refused(tmp_path):
    root = gallery(tmp_path / "photos", 2)
    with pytest.raises(apac.InputError, match=r"all images of class .* are held out; add some, or train with"):
        apac.train(apac.TrainConfig(str(root), "cnn", epochs=1, validation=0.6))


def test_a_gray_run_reads_its_folder_gray_for_ever(tmp_path):
    root = gallery(tmp_path / "photos", 4, mode="L")
    run = apac.train(apac.TrainConfig(str(root), "cnn", epochs=1, batch=4, validation=0.0))
    paint(root / "sky" / "colored.png", (1, 2, 200))
    assert images_to_test(run)[0].shape[1] == 1


def test_a_path_is_kept_whole_and_need_not_exist_where_a_run_is_loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(gallery(tmp_path / "a", 2).parent)
    wanted = str(tmp_path / "a")
    for name in ("a", "./a", "b/../a", tmp_path / "a"):
        assert apac.TrainConfig(name).data == wanted
    form = apac.TrainConfig("a").to_json()
    for elsewhere in ("/gone/photos", "C:\\Users\\me\\photos"):
        assert apac.TrainConfig.from_json(form | {"data": elsewhere}).data == elsewhere
    for none in ("", "nothing"):
        with pytest.raises(apac.InputError, match="there is no data set"):
            apac.TrainConfig(none)
    assert apac.TrainConfig("a", corrupt="skip") == apac.TrainConfig(
        "a"
    )  # a broken file does not make another training


def test_class_distinctive_deformation_on_ones_own_classes(tmp_path):
    root = gallery(tmp_path / "photos", 4)
    u = apac.PerClass({0: apac.Flip()}, default=apac.Compose(), classes=3)
    config = apac.TrainConfig(str(root), "cnn", u, epochs=1, batch=4, validation=0.0)
    assert apac.train(config).classifier(apac.FixedPasses(2)).deformation == u
    wrong = apac.PerClass({0: apac.Flip()}, default=apac.Compose(), classes=4)
    with pytest.raises(apac.InputError, match="has 3 classes, but the PerClass was made for 4"):
        apac.train(apac.TrainConfig(str(root), "cnn", wrong, epochs=1))
