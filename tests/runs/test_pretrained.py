"""The networks that are shipped with the package."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import apac
from apac import data
from apac.classify.rules.base import Rule
from apac.paper import recipes
from apac.runs import folder as run_folder
from apac.runs.folder import RunSettings
from apac.training.config import TrainConfig

SHIPPED = ["cifar10-cnn", "cifar10-modern", "mnist-cnn"]
OF_THE_PAPER = ["cifar10-cnn", "mnist-cnn"]
CONTINUED = Path(__file__).parent.parent.parent / "results" / "continued"

# Of the first 1,000 test images: how many are wrong by the plain prediction, and by this rule. Images of CIFAR-10 that
# lie between two classes may change with the rounding of the processor.
RULES: dict[str, Rule] = {
    "cifar10-cnn": apac.FixedPasses(64),
    "cifar10-modern": apac.FixedPasses(16),
    "mnist-cnn": apac.Certified(),
}
WRONG = {"cifar10-cnn": (182, 111), "cifar10-modern": (66, 49), "mnist-cnn": (3, 3)}
EITHER_WAY = {"cifar10-cnn": 3, "cifar10-modern": 2, "mnist-cnn": 0}


def test_every_shipped_run_is_tested():
    assert sorted(path.name for path in run_folder.PRETRAINED.iterdir()) == SHIPPED == sorted(WRONG)


def test_the_package_is_smaller_than_20_mb():
    files = [path for path in run_folder.PRETRAINED.parent.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files if path.parent.name != "__pycache__") < 20e6


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_run_is_complete_and_loads_from_anywhere(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = apac.load(name)
    assert len(run.history) == run.config.epochs
    assert run.classifier().rule == apac.Certified()
    assert run.choice is not None
    assert run.choice.images == 1000
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", OF_THE_PAPER)
def test_a_shipped_run_of_the_paper_has_the_settings_of_its_recipe(name):
    run, recipe = apac.load(name), recipes.find(name)
    settings = RunSettings(recipe.network, recipe.data, *recipe.trainings["deformed"])
    if name == "cifar10-cnn":  # trained further
        last = json.loads((CONTINUED / f"{name}.json").read_text())["stages"][-1]["config"]
        settings = replace(settings, config=TrainConfig(**last | {"weights": None}))
    assert run.settings == settings
    assert run.choice is not None
    assert (run.choice.strength, run.choice.combine) == (1, "product")


def test_a_local_folder_takes_precedence_over_a_shipped_run(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    apac.train("mnist-cnn", small, config=apac.TrainConfig(epochs=1, batch_size=400, seed=5), out="mnist-cnn")
    assert apac.load("mnist-cnn").config.seed == 5
    (tmp_path / "mnist-cnn" / "run.json").unlink()
    assert apac.load("mnist-cnn").config.epochs == 350


def test_the_shipped_digits_network_decides_digits(digits):
    # These digits are in MNIST's training set; the last test uses its test images.
    images, labels = digits[0][:200], digits[1][:200]
    decision = apac.load("mnist-cnn").classifier().decide(images)
    assert int((decision.labels != labels).sum()) == 2
    assert torch.tensor([why == "certified" for why in decision.stopped]).all()
    assert 32 <= decision.passes.double().mean() < 50


def test_the_shipped_network_for_color_images_returns_these_probabilities_for_a_gradient():
    run, across = apac.load("cifar10-cnn"), torch.arange(0, 256, 8, dtype=torch.uint8).expand(32, 32)
    image = torch.stack([across, across.T, 255 - across])[None]
    classifier = run.classifier(apac.FixedPasses(16))
    plain = classifier.plain(run.normalize(image))[0]
    assert plain.topk(3).indices.tolist() == [2, 3, 5]
    assert plain.topk(3).values.tolist() == pytest.approx([-0.5259, -0.9501, -3.9426], abs=1e-3)
    mean = classifier.decide(run.normalize(image)).log_scores[0]
    assert mean.topk(3).values.tolist() == pytest.approx([-1.1259, -2.4849, -2.5898], abs=1e-3)


@pytest.mark.data
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_network_makes_these_errors_on_real_test_images(name):
    run = apac.load(name)
    dataset = data.load(str(run.data))
    images, labels = run.normalize(dataset.test_images[:1000]), dataset.test_labels[:1000]
    classifier = run.classifier(RULES[name])
    predictions = classifier.plain(images).argmax(1), classifier.decide(images).labels
    wrong = [int((labels != predicted).sum()) for predicted in predictions]
    assert wrong == pytest.approx(WRONG[name], abs=EITHER_WAY[name])
