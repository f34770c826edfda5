"""Recipes, and the paper's settings."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

import apac
from apac.paper import recipes, reproduce
from apac.training import budget


@pytest.mark.parametrize("recipe", recipes.RECIPES.values(), ids=lambda recipe: recipe.name)
def test_a_training_and_its_baseline_differ_only_in_the_deformation_and_the_epochs(recipe):
    training, baseline = recipe.trainings.values()
    differing = {
        field.name
        for field in fields(training.config)
        if getattr(training.config, field.name) != getattr(baseline.config, field.name)
    }
    assert differing == ({"epochs"} if recipe.baseline_epochs < 1 else set())
    assert baseline.config.epochs == round(recipe.baseline_epochs * training.config.epochs)
    if recipe.name.endswith("distinctive"):
        assert baseline.deformation == apac.presets.mnist()
    else:
        preset = apac.presets.mnist() if "mnist" in recipe.name else apac.presets.cifar10()
        assert (training.deformation, baseline.deformation) == (preset, apac.Compose())


@pytest.mark.parametrize("name", recipes.TABLE)
def test_the_papers_schedule_is_the_papers(name):
    trainings = recipes.find(name, seed=3, schedule="paper").trainings
    learning_rate, weight_decay = {
        "mnist-cnn": (2**-4, 5e-7),
        "mnist-mlp": (2**-5, 5e-6),
        "cifar10-cnn": (2**-8, 5e-7),
        "cifar10-mlp": (2**-8, 5e-7),
    }[name]
    for training in trainings.values():
        assert training.config == apac.TrainConfig(
            epochs=15_000,
            batch_size=100,
            learning_rate=learning_rate,
            schedule="exponential",
            warmup=0.0,
            optimizer="sgd",
            tied=0.0,
            momentum=0.9,
            weight_decay=weight_decay,
            ema_decay=0.0,
            validation_fraction=0.0,
            seed=3,
            normalization="scaling" if "mnist" in name else "zca",
        )
    preset = apac.presets.mnist() if "mnist" in name else apac.presets.cifar10()
    assert [training.deformation for training in trainings.values()] == [preset, apac.Compose()]


def test_a_recipe_takes_as_many_epochs_as_the_hours_allow(monkeypatch):
    recipe, images = recipes.find("mnist-cnn"), torch.zeros(60_000, 1, 28, 28, dtype=torch.uint8)
    monkeypatch.setattr(budget, "_seconds_per_step", lambda *_: 100 / 590)  # 590 steps: 100 s per epoch
    assert [training.config.epochs for training in recipe.within(2, images).trainings.values()] == [60, 12]


def test_the_class_distinctive_recipe_deforms_only_1_and_7_less():
    usual = apac.presets.mnist()
    gentle = apac.Compose(apac.Homography(std=0.1, shear=0.05), *usual.parts[1:])
    assert usual.parts[0] == apac.Homography(std=0.1)  # which has the same shear
    assert recipes.DISTINCTIVE.of_class == tuple(gentle if c in (1, 7) else usual for c in range(10))


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_no_rule_of_a_recipe_takes_more_passes_than_its_largest_m(name):
    recipe = recipes.find(name)
    assert recipe.passes == recipes.RECIPES[name].passes
    assert all(rule.limit <= max(recipe.passes) for rule in recipe.certified)


def test_the_passes_that_are_asked_for_also_limit_the_certified_rules():
    recipe = recipes.find("mnist-5k-mlp")
    assert {rule.limit for rule in recipe.certified} == {256}
    assert {rule.limit for rule in recipe.with_passes((1, 4, 16)).certified} == {16}
    assert recipe.with_passes((1, 4)).certified == ()
    assert "then M up to 16 and 4 certified rules of at most 16 passes" in reproduce.outline(
        recipe.with_passes((1, 4, 16))
    )


def test_the_cost_of_class_distinctive_deformation_is_said_beforehand():
    outline = reproduce.outline(recipes.find("mnist-cnn-distinctive"))
    # 2 of the class-distinctive network, 1 of its baseline
    assert "then M up to 1,024 for each network and each of its deformations, 3 in all." in outline


def test_fewer_passes_than_those_of_the_showcase_leave_it_out():
    recipe = recipes.find("mnist-5k-cnn")
    assert recipe.with_passes((1, 16)).showcase == "cifar10-cnn"
    assert recipe.with_passes((1, 4)).showcase is None
