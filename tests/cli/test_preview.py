"""apac preview."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import Image

import apac
from apac.reporting.figures import images as figures
from apac.runs.preview import choose_images
from commands import refusal, succeed
from image_folders import COLORS, DEFAULT, gallery, paint


@pytest.fixture(autouse=True)
def _small_figures(monkeypatch):
    monkeypatch.setattr("apac.reporting.figures.canvas.DPI", 30)


def test_a_folder_is_drawn_before_any_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gallery(tmp_path / "photos", 2)
    result = succeed("preview", "photos", "--size", 24, "--fit", "pad")
    assert result.stdout.startswith("preview.png: 3 images of 3 x 24 x 24 pixels; deformation ")
    with Image.open("preview.png") as picture:
        assert picture.width > picture.height > 50
    first = (tmp_path / "preview.png").read_bytes()
    succeed("preview", "photos", "--size", 24, "--fit", "pad", "--seed", 1, "--out", "other.png")
    assert (tmp_path / "other.png").read_bytes() != first


def test_rows_are_the_images_of_each_class_and_the_deformation_is_the_default_of_training(tmp_path):
    root = gallery(tmp_path / "photos", 5)
    shown = choose_images([root])
    assert shown.names == ("apple", "apple", "leaf", "leaf", "sky", "sky") and shown.deformation == DEFAULT
    assert shown.labels is not None and shown.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert shown.images.shape[1:] == (3, 38, 38)  # the median shorter side of all files
    means = shown.images.mean((2, 3)) * 255
    torch.testing.assert_close(means[::2], torch.tensor(list(COLORS.values())).float(), atol=8, rtol=0)


def test_single_files_of_one_name_are_told_apart(tmp_path):
    paths = [paint(tmp_path / name / "1.png", COLORS["sky"]) for name in ("a", "b")]
    assert choose_images(paths).names == ("a/1.png", "b/1.png")
    assert choose_images([*paths[:1], paint(tmp_path / "2.png", COLORS["sky"])]).names == ("1.png", "2.png")


def test_a_run_shows_its_own_deformation_on_its_data_or_on_files(run, digit, few):
    shown = choose_images([run])
    assert shown.names == tuple("01234567") and shown.deformation == apac.presets.mnist()
    path, _ = digit
    shown = choose_images([run, path])
    assert shown.names == ("digit.png",) and shown.images.shape == (1, 1, 28, 28)
    assert shown.images[0, 0, 0, 0] == 0  # prepared as the run does: the paper is black


def test_the_figure_has_the_original_first_and_the_text_of_the_deformation(tmp_path, monkeypatch):
    drawn: dict[str, object] = {}
    monkeypatch.setattr(
        figures, "deformed_samples", lambda images, labels, u, **options: drawn.update(options, u=u) or b"png"
    )
    (tmp_path / "mild.json").write_text(json.dumps(apac.Compose(apac.Flip(0.25)).to_json()))
    root = gallery(tmp_path / "photos", 2)
    succeed("preview", root, "--deformation", tmp_path / "mild.json", "--out", tmp_path / "mild.png")
    assert drawn["u"] == apac.Compose(apac.Flip(0.25)) and drawn["title"] == "Flip(probability=0.25)"
    assert (tmp_path / "mild.png").read_bytes() == b"png"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not valid JSON: Expecting property name"),
        ("[1]", 'a deformation in JSON is an object with a "kind", got [1].'),
        ('{"kind": "Blur"}', "the deformation 'Blur' is not defined; start the command with apac --import MODULE."),
        ('{"kind": "Flip", "angle": 3}', "the deformation 'Flip' cannot be constructed from"),
        ('{"kind": "Flip", "probability": 3}', "probability"),
    ],
)
def test_a_wrong_deformation_file_is_rejected_in_one_sentence(text, sentence, tmp_path):
    (tmp_path / "u.json").write_text(text)
    message = refusal("preview", gallery(tmp_path / "p", 2), "--deformation", tmp_path / "u.json")
    assert "u.json" in message and sentence in message


def test_a_broken_file_is_passed_over(tmp_path):
    root = gallery(tmp_path / "photos", 5)
    first = sorted((root / "apple").iterdir())
    first[0].write_bytes(b"no image")
    assert len(choose_images([root]).images) == 6


def test_a_run_whose_folder_was_moved_asks_for_files(tmp_path):
    root = gallery(tmp_path / "photos", 4)
    config = apac.TrainConfig(epochs=1, batch_size=4, size=16)
    apac.train("resnet", root, config=config, out=tmp_path / "run")
    root.rename(tmp_path / "moved")
    assert "give image files after the run" in refusal("preview", tmp_path / "run")


def test_a_missing_source_is_named_with_what_may_stand_there(tmp_path):
    expected = "nosuch; give a run, a folder of images by class, or images."
    assert expected in refusal("preview", tmp_path / "nosuch")
