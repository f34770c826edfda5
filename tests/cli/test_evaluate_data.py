"""apac evaluate --data: a run is judged on other data."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import apac
from apac.runs.labeled_images import images_to_test
from commands import call, refusal, succeed
from image_folders import COLORS, gallery, paint

metrics = pytest.importorskip("sklearn.metrics")


@pytest.fixture(autouse=True)
def _small_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apac.reporting.figures.canvas.DPI", 40)


@pytest.fixture(scope="module")
def trained_on_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run and, beside it, the folder of its images."""
    root = tmp_path_factory.mktemp("judged")
    gallery(root / "photos", 6)
    config = apac.TrainConfig(epochs=1, batch_size=8, validation_fraction=0.0)
    apac.train("own_networks:linear", root / "photos", apac.Flip(), config=config, out=root / "run")
    return root


@pytest.fixture
def photos_run(trained_on_photos: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_on_photos / "run", tmp_path / "run"))


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """Two of the three classes; the sky of one file is an apple's red."""
    for i in range(4):
        paint(tmp_path / "others" / "apple" / f"{i}.png", COLORS["apple"], seed=i)
        paint(tmp_path / "others" / "sky" / f"{i}.png", COLORS["apple" if i == 2 else "sky"], seed=i)
    return tmp_path / "others"


def read(path: Path) -> list[dict[str, Any]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_other_data_are_judged_by_class_with_the_names_of_the_misclassified_files(photos_run, others):
    result = succeed("evaluate", photos_run, "--data", others, "--passes", "1,4")
    folder = photos_run / "evaluations" / "others"
    assert not (photos_run / "evaluation.json").exists()
    payload = json.loads((folder / "evaluation.json").read_text())
    assert (payload["images"], payload["data"], payload["own"]) == (8, str(others), False)

    run = apac.load(photos_run)
    tested = images_to_test(run, others)
    classifier = run.classifier(apac.FixedPasses(4))
    names = list(run.classes)
    truth = [names[c] for c in tested.labels]
    predicted = {
        "plain": [names[c] for c in classifier.plain(tested.images).argmax(1)],
        "apac": [names[c] for c in classifier.decide(tested.images).labels],
    }
    lines = read(folder / "confusion.csv")
    for rule, labels in predicted.items():
        expected = metrics.confusion_matrix(truth, labels, labels=names).tolist()
        assert payload["confusion"][rule] == expected
        assert [[int(line[name]) for name in names] for line in lines if line["rule"] == rule] == expected
    wrong = [
        {"image": str(i), "file": tested.files[i], "label": truth[i], **{rule: p[i] for rule, p in predicted.items()}}
        for i in range(8)
        if any(p[i] != truth[i] for p in predicted.values())
    ]
    assert read(folder / "misclassified.csv") == wrong
    assert "sky/2.png" in {line["file"] for line in wrong}
    assert [dict(image, image=str(image["image"])) for image in payload["misclassified"]] == wrong
    by_class = {line["class"]: line for line in read(folder / "classes.csv")}
    recall = metrics.recall_score(truth, predicted["apac"], labels=["sky"], average=None)[0]
    assert float(by_class["sky"]["apac_error"]) == pytest.approx(1 - recall)
    assert (by_class["leaf"]["images"], by_class["leaf"]["apac_error"]) == ("0", "")
    assert "Error by class" in result.stdout
    for name in ("confusion.png", "reliability.png", "risk.png"):
        with Image.open(folder / name) as picture:
            assert picture.format == "PNG"


def test_certified_decisions_of_other_data_have_their_files(photos_run, others, tmp_path):
    succeed("evaluate", photos_run, "--data", others, "--rule", "certified", "--limit", 32, "--out", tmp_path / "out")
    payload = json.loads((tmp_path / "out" / "certified.json").read_text())
    lines = read(tmp_path / "out" / "certified.csv")
    assert [line["file"] for line in lines] == [f"{name}/{i}.png" for name in ("apple", "sky") for i in range(4)]
    matrix = torch.tensor(payload["confusion"]["apac"])
    assert 1 - int(matrix.diagonal().sum()) / 8 == pytest.approx(payload["wrong"])
    assert [error["images"] for error in payload["class_errors"]] == [4, 0, 4]
    assert not (photos_run / "evaluations").exists()


def test_the_evaluation_of_another_folder_of_the_same_name_is_not_replaced(photos_run, others, tmp_path, no_drawing):
    succeed("evaluate", photos_run, "--data", others, "--passes", 1)
    second = Path(shutil.copytree(others, tmp_path / "second" / "others"))
    result = call("evaluate", photos_run, "--data", second, "--passes", 1)
    assert (result.exit_code, result.stdout) == (2, "")
    sentence = f"is the evaluation of other data, '{others}'; replace it with --overwrite, or choose another folder by"
    assert sentence in result.stderr
    succeed("evaluate", photos_run, "--data", second, "--passes", 1, "--out", tmp_path / "out")
    succeed("evaluate", photos_run, "--data", second, "--passes", 1, "--overwrite")


def test_a_moved_folder_is_no_dead_end(trained_on_photos, photos_run, tmp_path, no_drawing):
    moved = Path(shutil.copytree(trained_on_photos / "photos", tmp_path / "moved"))
    with_folder = succeed("evaluate", photos_run, "--passes", 1)
    before = json.loads((photos_run / "evaluation.json").read_text())
    settings = json.loads((photos_run / "run.json").read_text())
    (photos_run / "run.json").write_text(json.dumps(settings | {"data": str(tmp_path / "photos")}))
    sentence = refusal("evaluate", photos_run, "--passes", 1)
    assert sentence.endswith("on which this run was trained; if it was moved, give a folder by --data.")
    result = succeed("evaluate", photos_run, "--passes", 1, "--data", moved)
    assert "holds the images of the training; the files that it held out are evaluated" in " ".join(
        result.stdout.split()
    )
    after = json.loads((photos_run / "evaluation.json").read_text())
    assert after == before | {"data": str(moved), "seconds": after["seconds"]}
    assert "evaluation.json" in with_folder.stdout.replace("\n", "")


def test_unknown_classes_are_named_and_broken_files_can_be_skipped(photos_run, others, no_drawing):
    paint(others / "sea" / "1.png", (0, 0, 99))
    sentence = refusal("evaluate", photos_run, "--data", others)
    assert "has classes that the run does not have: sea; it has apple, leaf, sky" in sentence
    shutil.rmtree(others / "sea")
    (others / "sky" / "broken.png").write_text("no image")
    result = succeed("evaluate", photos_run, "--data", others, "--passes", 1, "--on-unreadable", "skip")
    assert "Error on 8 test images" in result.stdout
