"""Recipes, and their results next to the paper's."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

import apac
from apac.evaluation.fixed import Row
from apac.paper import comparison, recipes
from apac.training import budget
from evaluations import evaluation


@pytest.mark.parametrize("recipe", recipes.RECIPES.values(), ids=lambda recipe: recipe.name)
def test_the_two_trainings_of_a_recipe_differ_in_the_deformation_and_the_epochs_alone(recipe):
    deformed, other = recipe.trainings.values()
    differing = {f.name for f in fields(deformed) if getattr(deformed, f.name) != getattr(other, f.name)}
    assert differing == {"deformation"} | ({"epochs"} if recipe.share < 1 else set())
    assert other.epochs == round(recipe.share * deformed.epochs)
    if recipe.name.endswith("distinctive"):
        assert other.deformation == apac.presets.mnist()
    else:
        assert deformed.deformation == (apac.presets.mnist() if "mnist" in recipe.name else apac.presets.cifar10())
        assert other.deformation == apac.Compose()


@pytest.mark.parametrize("name", recipes.TABLE)
def test_the_papers_schedule_is_the_papers(name):
    trainings = recipes.find(name, seed=3, schedule="paper").trainings
    rate, l2 = {
        "mnist-cnn": (2**-4, 5e-7),
        "mnist-mlp": (2**-5, 5e-6),
        "cifar10-cnn": (2**-8, 5e-7),
        "cifar10-mlp": (2**-8, 5e-7),
    }[name]
    for config in trainings.values():
        assert (config.epochs, config.batch, config.rate, config.l2) == (15_000, 100, rate, l2)
        assert (config.schedule, config.optimizer, config.momentum) == ("paper", "sgd", 0.9)
        assert (config.warmup, config.average, config.validation, config.tied, config.seed) == (0, 0, 0, 0, 3)
    preset = apac.presets.mnist() if "mnist" in name else apac.presets.cifar10()
    assert [config.deformation for config in trainings.values()] == [preset, apac.Compose()]


def test_a_recipe_takes_as_many_epochs_as_the_hours_allow(monkeypatch):
    recipe, images = recipes.find("mnist-cnn"), torch.zeros(60_000, 1, 28, 28, dtype=torch.uint8)
    monkeypatch.setattr(budget, "_seconds_a_step", lambda config, images: 100 / 590)  # 590 steps: 100 s an epoch
    assert [config.epochs for config in recipe.within(2, images).trainings.values()] == [60, 12]


def test_the_class_distinctive_recipe_is_gentler_with_1_and_7_alone():
    usual = apac.presets.mnist()
    gentle = apac.Compose(apac.Homography(std=0.1, shear=0.05), *usual.parts[1:])
    assert usual.parts[0] == apac.Homography(std=0.1)  # and so is its shear
    assert recipes.DISTINCTIVE.of_class == tuple(gentle if c in (1, 7) else usual for c in range(10))


def test_the_summary_is_in_the_order_given_with_the_papers_numbers_beside():
    deformed = evaluation(0.0105, Row(1, 0.03, 0.03, 0.01), Row(16384, 0.0023, 0.0024, 0.0001))
    paper = recipes.PAPER_TABLE["mnist-cnn"]
    one = {"original": 1, "deformed": 1}
    summary = comparison.summary({"original": evaluation(0.022), "deformed": deformed}, paper, one)
    assert summary.rows == (
        ("original data", "plain", "2.20 % ± 0.46", "0.69 %"),
        ("deformed data", "plain", "1.05 % ± 0.32", "0.39 %"),
        ("deformed data", "APAC, 16,384 passes", "0.23 % ± 0.15", "0.23 %"),
    )
    rows = comparison.summary({"distinctive": deformed}, paper, {"distinctive": 2}).rows
    assert [row[3] for row in rows] == ["not tried"] * 2
    assert rows[1][1] == "APAC, 2 × 16,384 passes"
