"""Runs on folders of images, from training to a decision."""

from __future__ import annotations

import csv

import pytest
from typer.testing import CliRunner

import apac
from apac import cli
from apac.runs.run import images_to_test
from image_folders import COLORS, gallery, paint


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
