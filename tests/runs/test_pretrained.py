"""The networks that come with the package."""

from __future__ import annotations

import pytest
import torch

import apac
from apac import data
from apac.classify.rules.base import Rule
from apac.paper import recipes
from apac.runs import folder as run_folder

SHIPPED = ["cifar10-cnn", "mnist-cnn"]

# Of the first 1,000 test images: how many are wrong by the plain prediction, and by this rule. Images of CIFAR-10 that
# lie between two classes may go either way on a machine that rounds otherwise.
RULES: dict[str, Rule] = {"cifar10-cnn": apac.FixedPasses(64), "mnist-cnn": apac.Certified()}
WRONG = {"cifar10-cnn": (191, 118), "mnist-cnn": (3, 3)}
EITHER_WAY = {"cifar10-cnn": 3, "mnist-cnn": 0}


def test_all_that_is_shipped_is_tested_here():
    assert sorted(path.name for path in run_folder.PRETRAINED.iterdir()) == SHIPPED == sorted(WRONG)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_run_is_the_recipes_and_loads_from_anywhere(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = apac.load(name)
    assert run.config == recipes.find(name).deformed
    assert len(run.history) == run.config.epochs
    assert run.classifier().rule == apac.Certified()
    assert not list(tmp_path.iterdir())


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = apac.TrainConfig("mnist-5k", "cnn", epochs=1, batch=2000, seed=5)
    apac.train(config, "mnist-cnn")
    assert apac.load("mnist-cnn").config == config
    (tmp_path / "mnist-cnn" / "run.json").unlink()
    assert apac.load("mnist-cnn").config.epochs == 350


def test_the_shipped_digits_network_decides_digits(digits):
    # They are of MNIST's training set; the test images that it has not seen are for the test with data below.
    images, labels = digits[0][:200], digits[1][:200]
    decision = apac.load("mnist-cnn").classifier().decide(images)
    assert int((decision.labels != labels).sum()) == 2
    assert torch.tensor([why == "certified" for why in decision.stopped]).all()
    assert 32 <= decision.passes.double().mean() < 50


def test_the_shipped_network_of_color_images_says_this_of_a_gradient():
    run, across = apac.load("cifar10-cnn"), torch.arange(0, 256, 8, dtype=torch.uint8).expand(32, 32)
    image = torch.stack([across, across.T, 255 - across])[None]
    classifier = run.classifier(apac.FixedPasses(16))
    plain = classifier.plain(run.normalize(image))[0]
    assert plain.topk(3).indices.tolist() == [2, 3, 5]
    assert plain.topk(3).values.tolist() == pytest.approx([-0.1081, -2.3541, -5.4994], abs=1e-3)
    mean = classifier.decide(run.normalize(image)).log_scores[0]
    assert mean.topk(3).values.tolist() == pytest.approx([-0.8535, -2.2439, -2.5523], abs=1e-3)


@pytest.mark.data
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_network_makes_these_errors_on_real_test_images(name):
    run = apac.load(name)
    dataset = data.load(run.config.data)
    images, labels = run.normalize(dataset.test_images[:1000]), dataset.test_labels[:1000]
    classifier = run.classifier(RULES[name])
    guesses = classifier.plain(images).argmax(1), classifier.decide(images).labels
    found = [int((labels != each).sum()) for each in guesses]
    assert found == pytest.approx(WRONG[name], abs=EITHER_WAY[name])
