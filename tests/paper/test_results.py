"""The stored results, and their numbers in the docs, the README and the recipes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import apac
from apac.paper import recipes
from apac.paper.recipe import PAPER_TABLE, SHOWCASE_PASSES
from apac.runs.folder import RunSettings
from apac.training.budget import PAPER_EPOCHS
from apac.training.config import TrainConfig

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "results.md").read_text()
README = (ROOT / "README.md").read_text()
SECTIONS = {
    "mnist-cnn": "MNIST CNN",
    "mnist-mlp": "MNIST MLP",
    "mnist-mlp-free": "MNIST MLP, never tied",
    "mnist-cnn-distinctive": "MNIST CNN, class-distinctive",
    "cifar10-cnn": "CIFAR-10 CNN",
    "cifar10-mlp": "CIFAR-10 MLP",
}
RULES = {"product": "product", "sum": "sum", "top2": "top-2, by product"}
LABELS = {"deformed": "", "distinctive": "class-distinctive, ", "indistinctive": "class-indistinctive, "}


def stored(name: str) -> dict:
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def trained_further() -> dict:
    """The shipped network for CIFAR-10."""
    return stored("continued/cifar10-cnn")


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def section(name: str) -> str:
    return re.split(r"^## ", PAGE.partition(f"\n## {SECTIONS[name]}\n")[2], flags=re.MULTILINE)[0]


def cells(text: str) -> list[list[str]]:
    return [
        [cell.strip().strip("*") for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line[:1] == "|"
    ]


def test_a_result_of_every_recipe_on_the_full_data_is_stored():
    full = {name for name, recipe in recipes.RECIPES.items() if recipe.data != "mnist-5k"}
    assert {path.stem for path in (ROOT / "results").glob("*.json")} == full == set(SECTIONS) >= set(recipes.TABLE)


@pytest.mark.parametrize("name", SECTIONS)
def test_a_stored_result_has_the_settings_of_its_recipe(name):
    payload, recipe = stored(name), recipes.find(name)
    assert payload["recipe"] == name
    assert {"processor", "cores", "torch threads", "date", "versions"} <= payload["written"].keys()
    for kind, (deformation, config) in recipe.trainings.items():
        training = payload["trainings"][kind]
        config = replace(config, precision=training["config"].get("precision", "float32"))
        assert RunSettings.from_json(training) == RunSettings(recipe.network, recipe.data, deformation, config)
        assert len(training["history"]) == config.epochs
        assert training["evaluation"]["images"] == 10_000


@pytest.mark.parametrize("name", SECTIONS)
def test_the_results_page_lists_the_errors_of_every_recipe(name):
    text = section(name)
    table = {row[0]: row[1:] for row in cells(text)}
    prose = " ".join(" ".join(line for line in text.splitlines() if line[:1] != "|").split())
    for kind, training in stored(name)["trainings"].items():
        rows = training["evaluation"]["rows"]
        for rule, label in RULES.items() if rows else ():
            assert table[LABELS[kind] + label] == [percent(row[rule]) for row in rows]
            assert table["M"] == [f"{row['passes']:,}" for row in rows]
        if rows:
            changed = [f"{len(training['evaluation'][how]):,}" for how in ("corrected", "corrupted")]
            p = training["evaluation"]["mcnemar"]
            sentence = f"corrected {changed[0]} plain predictions and corrupted {changed[1]} (McNemar p = "
            assert sentence + (f"{p:.2g})" if p > 1e-3 else f"{p:.0e})") in prose
        if name not in recipes.TABLE:  # those have it in the table at the top
            assert f"{percent(training['evaluation']['plain'])}" in prose


def test_the_results_page_lists_the_errors_of_the_network_that_was_trained_further():
    payload = trained_further()
    text = re.split(r"^## ", PAGE.partition("\n## CIFAR-10 CNN, trained further\n")[2], flags=re.MULTILINE)[0]
    text = text.partition("**All 50,000 images.**")[0]
    rows = payload["evaluation"]["rows"]
    table = {row[0]: row[1:] for row in cells(text)}
    assert table["M"] == [f"{row['passes']:,}" for row in rows]
    for rule, label in RULES.items():
        assert table[label] == [percent(row[rule]) for row in rows]
    epochs = [stage["stopped_after"] or stage["config"]["epochs"] for stage in payload["stages"]]
    assert [len(stage["history"]) for stage in payload["stages"]] == epochs
    prose = " ".join(text.split())
    for words in (
        f"{sum(epochs)} more epochs",
        f"plain prediction has {percent(payload['evaluation']['plain'])}",
        f"corrected {len(payload['evaluation']['corrected'])} plain",
        f"corrupted {len(payload['evaluation']['corrupted'])} (McNemar p = {payload['evaluation']['mcnemar']:.0e})",
    ):
        assert words in prose
    # the first training had 160 epochs, in an earlier recipe
    above = f"{160 + sum(epochs)} epochs in all, the CIFAR-10 CNN has {percent(rows[-1]['product'])}"
    assert above in " ".join(PAGE.split())
    shown = cells(PAGE)
    first = next(place for place, row in enumerate(shown) if row[0] == "CIFAR-10 CNN, trained further")
    assert [row[1:3] for row in shown[first : first + 4]] == [
        ["plain", percent(payload["evaluation"]["plain"])],
        [f"APAC, M = {rows[-1]['passes']:,}", percent(rows[-1]["product"])],
        [f"sum of softmaxes, M = {rows[-1]['passes']:,}", percent(rows[-1]["sum"])],
        ["APAC, top-2", percent(rows[-1]["top2"])],
    ]


def test_the_results_page_says_what_averaged_weights_gave():
    payload = stored("continued/cifar10-cnn-averaged")
    errors = {row["passes"]: percent(row["product"]) for row in payload["evaluation"]["rows"]}
    words = f"It has {errors[1024]} error with M = 1,024 ({errors[256]} with 256) and "
    assert words + f"{percent(payload['evaluation']['plain'])} plain" in " ".join(PAGE.split())
    assert len(payload["history"]) == payload["config"]["epochs"] == 110


def test_the_results_page_says_what_all_images_gave():
    payload = stored("continued/cifar10-cnn-all-images")
    rows, text = payload["evaluation"]["rows"], PAGE.partition("**All 50,000 images.**")[2].partition("\n## ")[0]
    table = {row[0]: row[1:] for row in cells(text)}
    assert table["M"] == [f"{row['passes']:,}" for row in rows]
    for rule, label in RULES.items():
        assert table[label] == [percent(row[rule]) for row in rows]
    words = f"It has {percent(rows[-1]['product'])} error with M = {rows[-1]['passes']:,} and "
    assert words + f"{percent(payload['evaluation']['plain'])} plain" in " ".join(text.split())
    assert len(payload["history"]) == payload["config"]["epochs"] == 80
    assert payload["config"]["validation_fraction"] == 0


@pytest.mark.parametrize("name", recipes.TABLE)
def test_the_table_of_the_results_page_lists_the_errors_of_every_recipe(name):
    here, there = stored(name)["trainings"], PAPER_TABLE[name]
    deformed, original = (here[kind]["evaluation"] for kind in ("deformed", "original"))
    last, title = deformed["rows"][-1], SECTIONS[name]
    at = f"M = {last['passes']:,}"
    rows = cells(PAGE)
    first = next(place for place, row in enumerate(rows) if row[0] == f"{title}, original data")
    expected = [
        [f"{title}, original data", "plain", percent(original["plain"])],
        [f"{title}, deformed data", "plain", percent(deformed["plain"])],
        ["", f"APAC, {at}", percent(last["product"])],
        ["", f"sum of softmaxes, {at}", percent(last["sum"])],
        ["", "APAC, top-2", percent(last["top2"])],
    ]
    shown = rows[first : first + 5]
    assert [row[:3] for row in shown] == expected
    theirs = [there["original"].plain, there["deformed"].plain, there["deformed"].apac]
    assert [row[3] for row in shown[:3]] == [f"{error:.2f} %" for error in theirs]
    assert [row[4] for row in shown[:2]] == [str(here[kind]["config"]["epochs"]) for kind in ("original", "deformed")]


def seeds(name: str) -> list[dict]:
    """The trainings of a recipe with deformation, by seed."""
    others = sorted((ROOT / "results" / "seeds").glob(f"{name}-*.json"))
    first = next(iter(stored(name)["trainings"].values()))
    return [first, *(json.loads(path.read_text())["training"] for path in others)]


def test_the_results_page_lists_the_budget_and_the_seeds_of_every_recipe():
    text = PAGE.partition("\n## Budget and seeds\n")[2].partition("\n## ")[0]
    expected = []
    for name, title in SECTIONS.items():
        runs = seeds(name)
        history = runs[0]["history"]
        expected.append(
            [
                title,
                f"{len(history)}",
                f"{len(history) / PAPER_EPOCHS:.1%}".replace("%", " %"),
                f"{history[-1]['seconds'] / 60:.0f}",
                ", ".join(str(run["config"]["seed"]) for run in runs),
                ", ".join(percent(run["evaluation"]["plain"]) for run in runs),
                shown_errors(runs),
            ]
        )
    assert cells(text)[2:] == expected


def shown_errors(runs: list[dict]) -> str:
    """The errors of APAC with M = 1,024, or the largest M below."""
    rows = [[row for row in run["evaluation"]["rows"] if row["passes"] <= 1024][-1] for run in runs]
    (passes,) = {row["passes"] for row in rows}
    return f"{', '.join(percent(row['product']) for row in rows)} with M = {passes:,}"


def test_the_seeds_of_mnist_cnn_differ_in_the_precision_and_in_nothing_else():
    first, *others = seeds("mnist-cnn")
    config = TrainConfig.from_json(first["config"])
    assert len(others) == 2
    for seed, other in enumerate(others, start=1):
        own = TrainConfig.from_json(other["config"])
        assert own == replace(config, seed=seed, precision="bfloat16")
        assert [other[name] for name in ("network", "data", "deformation")] == [
            first[name] for name in ("network", "data", "deformation")
        ]
        assert len(other["history"]) == own.epochs


def test_the_extrapolation_to_ten_times_the_epochs_is_log_linear():
    name = "mnist-cnn"
    recipe = recipes.find(name)
    runs = [stored(f"tenth/{name}")["trainings"]["deformed"], stored(name)["trainings"]["deformed"]]
    epochs = [recipe.config.epochs // 10, recipe.config.epochs]
    errors = [{row["passes"]: row["product"] for row in run["evaluation"]["rows"]}[16] for run in runs]
    expected = [recipe.with_epochs(n).trainings["deformed"].config for n in epochs]
    assert [TrainConfig.from_json(run["config"]) for run in runs] == expected
    shown = next(row for row in cells(PAGE) if row[0] == SECTIONS[name] and "epochs" in row[1])
    assert shown[1:3] == [f"{n} epochs, {percent(error)}" for n, error in zip(epochs, errors, strict=True)]
    assert float(shown[3].rstrip(" %")) == pytest.approx(100 * errors[1] ** 2 / errors[0], abs=0.05)


@pytest.mark.parametrize("name", SECTIONS)
def test_the_expected_errors_of_a_recipe_are_the_stored_results(name):
    sentence = re.split(r"^(?=\S)", (recipes.__doc__ or "").partition(f"\n{name}\n")[2], flags=re.MULTILINE)[0]
    expected = " ".join(re.search(r"expected (.*?)time ", sentence, flags=re.DOTALL).group(1).split())
    trainings = stored(name)["trainings"]
    for kind, training in trainings.items():
        evaluation = training["evaluation"]
        if kind == "original":
            assert f"original {percent(evaluation['plain'])}," in expected
        else:
            last = evaluation["rows"][-1]
            assert f"plain {percent(evaluation['plain'])}, APAC {percent(last['product'])}" in expected
            assert f"M = {last['passes']:,}" in expected


def test_the_readme_states_the_errors_of_the_shipped_networks():
    mnist, cifar10 = stored("mnist-cnn")["trainings"]["deformed"]["evaluation"], trained_further()["evaluation"]
    words = " ".join(README.split())
    apac = (
        f"{percent(mnist['rows'][-1]['product'])} and {100 * cifar10['rows'][-1]['product']:.1f} % test error by APAC"
    )
    plain = f"{percent(mnist['plain'])} and {100 * cifar10['plain']:.1f} % by plain prediction"
    assert f"{apac}, {plain}" in words


def test_the_readme_opens_with_the_errors_of_the_shipped_network_after_the_passes_of_the_demo():
    evaluation = trained_further()["evaluation"]
    error = {row["passes"]: row["product"] for row in evaluation["rows"]}[SHOWCASE_PASSES[-1]]
    rows = cells(README.partition("## Getting started")[0])
    assert [row[1].split(" (")[0].strip("*") for row in rows[2:4]] == [percent(evaluation["plain"]), percent(error)]
    for wrong in (evaluation["plain"], error):
        assert f"{round(10_000 * wrong):,}" in README


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("cifar10-modern", "A modern network"),
        ("cifar10-modern-elastic", "A modern network and the paper's kind of deformation"),
    ],
)
def test_the_results_page_lists_how_the_modern_network_was_decided(name, title):
    payload = stored(f"views/{name}")
    text = re.split(r"^## ", PAGE.partition(f"\n## {title}\n")[2], flags=re.MULTILINE)[0]
    shown = {row[0]: row[1:] for row in cells(text)}
    for way in payload["ways"]:
        assert shown[way["rule"]] == [
            percent(way["error"]),
            f"{way['nll']:.4f}",
            f"{way['corrected']:,}",
            f"{way['corrupted']:,}",
            f"{way['passes']:.4g}",
            f"{way['seconds']:,.0f}",
        ]
    assert len(payload["history"]) == payload["run"]["config"]["epochs"]
    assert f"{payload['run']['config']['epochs']} epochs" in text


def test_the_shipped_modern_network_is_the_one_of_the_results_page():
    assert apac.load("cifar10-modern").settings == RunSettings.from_json(stored("views/cifar10-modern")["run"])


def test_the_results_page_counts_the_dark_units():
    text = PAGE.partition("**Where did the dark units come from?**")[2].partition("\n## ")[0]
    names = {"run": "Muon", "muon": "Muon", "muon-decay": "Muon", "muon-coupled": "Muon, coupled"}
    names |= {"sgd": "SGD", "sgd-decay": "SGD"}
    expected = {
        (
            names[run["training"]],
            f"{run['units'][0]:,}",
            str(run["epochs"]),
            f"{run['weight_decay']:g}".replace("e-0", "e-"),
            f"{run['loss']:.3f}",
            *shares(run),
        )
        for run in stored("units/mlp")
    }
    assert {tuple(row) for row in cells(text)[2:]} == expected


def test_the_results_page_lists_the_trials_of_weight_decay_and_tying():
    text = PAGE.partition("**Weight decay.**")[2].partition("\n- **")[0]
    expected = [
        [
            trial["network"],
            f"{trial['config']['epochs']}, {tied} tied",
            f"{trial['config']['weight_decay']:g}".replace("e-0", "e-"),
            f"{trial['loss']:.3f}",
            *(percent(trial[error]) for error in ("plain", "one_pass", "apac")),
            f"{trial['nll']:.4f}",
        ]
        for trial in stored("held-out/trials")
        if "narrow" not in trial["network"]
        for tied in [int(trial["config"]["tied"] * trial["config"]["epochs"])]
    ]
    assert cells(text.replace("\n    |", "\n|"))[2:] == expected


def test_the_results_page_lists_the_trials_of_the_strength():
    expected = [
        [
            f"{trial['deformation']['parts'][0]['scale'][1] - 1:g}",  # 1 is the paper's scale of at most 2
            f"{trial['loss']:.3f}",
            *(percent(trial[error]) for error in ("plain", "one_pass", "apac")),
            f"{trial['nll']:.4f}",
        ]
        for trial in stored("held-out/trials")
        if "narrow" in trial["network"]
    ]
    text = PAGE.partition("\n## A modern network and the paper's kind of deformation\n")[2].partition("\n## ")[0]
    assert [row for row in cells(text) if row[0].startswith("0.")] == expected


def shares(run: dict) -> tuple[str, str]:
    return f"{100 * run['dark']:.1f} %", f"{100 * run['dead']:.1f} %"
