"""What apac train prints before the first step."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

import apac
from apac.cli.train_summary import summary_lines
from apac.runs.folder import RunSettings
from apac.runs.summary import ClassCounts, TrainingSummary
from commands import succeed
from image_folders import gallery, paint

SHORT = ["--epochs", "1", "--batch-size", "40"]


def test_the_files_the_classes_and_the_choices_are_printed(tmp_path):
    root = tmp_path / "photos"
    gallery(root / "train", 5)
    gallery(root / "val", 2)
    gallery(root / "test", 2)  # the same files as the first two of train
    (root / "train" / "sky" / "IMG_1.heic").write_bytes(b"x")
    (root / "train" / "sky" / "broken.png").write_bytes(b"x")
    shutil.copy(root / "train" / "sky" / "03.png", root / "train" / "apple" / "sky.png")
    paint(root / "alone.png", (1, 2, 3))
    options = ["--on-unreadable", "skip", "--network", "cifar10-cnn", "--deformation", "cifar10", "--fit", "pad"]
    result = succeed("train", "--data", root, *options, *SHORT, "--out", tmp_path / "run")
    assert max(map(len, result.stdout.splitlines()[:-2])) <= max(80, len(f"data           {root}:"))
    text = " ".join(result.stdout.split())
    for part in (
        f"data {root}: 22 images of 3 classes",
        "skipped 1 outside of the class folders (alone.png)",
        "1 HEIC (train/sky/IMG_1.heic); convert to JPEG or PNG",
        "1 unreadable (train/sky/broken.png)",
        "unused the folder val, 6 images",
        "warning 6 test images are also training images (test/apple/00.png = train/apple/00.png)",
        "warning 1 image is also in another class (train/sky/03.png = train/apple/sky.png)",
        "14 to train on, 2 held out for the validation error, 6 to test on (the folder test)",
        "class train held out test apple",
        "images 3 x 32 x 32 pixels, the size that cifar10-cnn takes, padded by repeating the edge",
        "normalization standardization",
        "deformation cifar10: ScaleShift(",
        "network cifar10-cnn, 404,099 parameters",
    ):
        assert part in text, part
    assert result.stdout.splitlines()[-1].startswith("next: apac evaluate")


@pytest.mark.parametrize("count", [12, 40])
def test_many_classes_are_abbreviated(count):
    settings = RunSettings("resnet", "mnist", apac.Compose(), apac.TrainConfig())
    classes = tuple(ClassCounts(f"class {i}", 1000 + i, 10, 0) for i in range(count))
    lines = summary_lines(TrainingSummary(settings, None, classes, (1, 28, 28), "scaling", "resnet", 5, 5))
    rows = [line for line in lines if line.strip().startswith(("class ", "30 others"))]
    assert len(rows) == {12: 13, 40: 12}[count]
    assert rows[-1].split() == (
        ["class", "11", "1,011", "10", "0"] if count == 12 else ["30", "others", "30,735", "300", "0"]
    )
    assert "deformation    none" in lines and "network        resnet, 5 parameters" in lines


def test_a_frozen_network_and_its_weights_are_named():
    config = apac.TrainConfig(freeze=True)
    settings = RunSettings("resnet", "mnist", apac.Compose(), config)
    summary = TrainingSummary(settings, None, (), (1, 28, 28), "scaling", "resnet", 1_000, 10)
    text = " ".join(" ".join(summary_lines(summary)).split())
    assert "resnet, 1,000 parameters, of which 10 are trained; the others stay random" in text
    settings = replace(settings, config=replace(config, weights="/net.safetensors"))
    text = " ".join(" ".join(summary_lines(replace(summary, settings=settings))).split())
    assert text.endswith("of which 10 are trained, initial weights from /net.safetensors")
