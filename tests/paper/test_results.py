"""The results that are kept, and what the docs say of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from apac.paper import recipes
from apac.training.config import TrainConfig

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "results.md").read_text()


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*.json")), ids=lambda path: path.stem)
def test_a_kept_result_is_the_recipes_and_the_page_has_its_errors(path):
    form = json.loads(path.read_text())
    recipe = recipes.find(form["recipe"])
    for name, config in recipe.trainings.items():
        training = form["trainings"][name]
        assert TrainConfig.from_json(training["config"]) == config
        assert len(training["history"]) == config.epochs
        evaluation = training["evaluation"]
        assert evaluation["images"] == 10_000
        assert f"{100 * evaluation['plain']:.2f} %" in PAGE
        for row in evaluation["rows"]:
            for rule in ("product", "sum", "top2"):
                assert f"{100 * row[rule]:.2f} %" in PAGE
