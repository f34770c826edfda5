"""apac reproduce."""

from __future__ import annotations

import itertools
import json
import re
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import apac
from apac.paper import recipes
from commands import call, refusal, succeed


@pytest.fixture
def tiny(monkeypatch) -> None:
    """Small versions of the full recipes: one step per epoch and 16 passes."""
    for name in ("mnist-cnn", "mnist-cnn-distinctive"):
        recipe = recipes.RECIPES[name]
        config = replace(recipe.config, epochs=2, batch_size=400)
        rules = (apac.Certified(0.3, limit=16),) if name == "mnist-cnn" else ()
        small = replace(recipe, data="mnist-5k", config=config, passes=(1, 16), certified=rules)
        monkeypatch.setitem(recipes.RECIPES, name, small)
    monkeypatch.setattr(recipes, "TABLE", ("mnist-cnn",))


@pytest.fixture
def no_figures(monkeypatch) -> None:
    """Figures are slow to draw."""
    monkeypatch.setattr("apac.paper.report.draw", lambda result: {})


def test_reproduce_writes_a_self_contained_report(tmp_path, monkeypatch, few):
    recipe = recipes.RECIPES["mnist-5k-mlp"]
    rules = tuple(apac.Certified(error, limit=32) for error in (0.3, 0.1))
    config = replace(recipe.config, epochs=1, batch_size=400)
    short = replace(recipe, config=config, passes=(1, 4, 32), certified=rules)
    monkeypatch.setitem(recipes.RECIPES, "mnist-5k-mlp", short)
    out = tmp_path / "report"
    result = succeed("reproduce", "mnist-5k-mlp", "--out", out)
    page = (out / "report.html").read_text()
    assert not re.search(r'(src|href)="(?!data:)', page)
    payload = json.loads((out / "results.json").read_text())
    for name in ("deformed", "original"):
        assert f"{100 * payload['trainings'][name]['evaluation']['plain']:.2f} %" in page
        assert f"{100 * payload['trainings'][name]['evaluation']['plain']:.2f} %" in result.stdout
    assert payload["trainings"]["original"]["deformation"] == {"kind": "Compose", "parts": []}
    assert [entry["rule"]["error"] for entry in payload["certified"]] == [0.3, 0.1]
    for entry in payload["certified"]:
        assert f"<td>{entry['mean']:.1f}</td>" in page
        assert f"{100 * entry['wrong']:.2f} %" in result.stdout
    assert [len(payload["trainings"][name]["history"]) for name in ("deformed", "original")] == [1, 1]
    for name in ("error-against-m", "certified", "deformed-samples", "misclassified", "first-layer-weights"):
        with Image.open(out / f"{name}.png") as picture:
            assert np.asarray(picture.convert("L")).std() > 5
    assert page.count("data:image/png") == len(list(out.glob("*.png")))


def test_a_report_is_rejected_resumed_or_overwritten(tmp_path, few, tiny, no_figures):
    out = tmp_path / "report"
    succeed("reproduce", "mnist-cnn", "--out", out)
    payload = json.loads((out / "results.json").read_text())
    assert "already holds a report" in refusal("reproduce", "mnist-cnn", "--out", out)
    (out / "runs" / "mine").mkdir()  # a run of the user's own next to those of the report
    (out / "runs" / "mine" / "run.json").write_text("{}")
    before = (out / "runs" / "deformed" / "weights.safetensors").stat().st_mtime_ns
    succeed("reproduce", "mnist-cnn", "--out", out, "--resume")
    assert (out / "runs" / "deformed" / "weights.safetensors").stat().st_mtime_ns == before
    again = json.loads((out / "results.json").read_text())["certified"]
    assert [entry["seconds"] for entry in again] == [entry["seconds"] for entry in payload["certified"]]  # cached
    (out / "corrected.png").write_bytes(b"of an earlier report")
    succeed("reproduce", "mnist-cnn", "--out", out, "--overwrite", "--seed", 1)
    assert (out / "runs" / "mine" / "run.json").exists()
    assert json.loads((out / "results.json").read_text())["trainings"]["deformed"]["config"]["seed"] == 1
    assert not (out / "corrected.png").exists()


def test_all_writes_every_row_and_the_papers_table_and_resuming_repeats_nothing(tmp_path, monkeypatch, few, no_figures):
    rows = {name: recipes.RECIPES[f"mnist-5k-{name}"] for name in ("cnn", "mlp")}
    for name, recipe in rows.items():
        config = replace(recipe.config, epochs=2, batch_size=400)
        short = replace(recipe, name=f"mnist-{name}", config=config, passes=(1, 4), certified=(), baseline_epochs=0.5)
        short = replace(short, showcase=None)
        monkeypatch.setitem(recipes.RECIPES, f"mnist-{name}", short)
    monkeypatch.setattr(recipes, "TABLE", ("mnist-cnn", "mnist-mlp"))
    monkeypatch.setattr("apac.paper.table2.NAMES", {"mnist-5k": "MNIST"})
    out = tmp_path / "all"
    succeed("reproduce", "all", "--out", out)
    page = (out / "report.html").read_text()
    for name in ("mnist-cnn", "mnist-mlp"):
        assert f'<a href="{name}/report.html">' in page
        payload = json.loads((out / name / "results.json").read_text())
        deformed, original = (payload["trainings"][kind] for kind in ("deformed", "original"))
        assert [len(deformed["history"]), len(original["history"])] == [2, 1]
        for error in (deformed["evaluation"]["rows"][-1]["product"], original["evaluation"]["plain"]):
            assert f"<td>{100 * error:.2f} (" in page
    assert (out / "mnist-5k-error-against-m.png").stat().st_size > 5000

    # Resumed with more passes: nothing is trained, and the cached passes are not computed again.
    monkeypatch.setattr("apac.runs.train.run_epochs", lambda *a, **o: pytest.fail("trained again"))
    computed: list[tuple[int, int]] = []
    original = apac.Classifier.score

    def score(self, images, start, stop, **options):
        computed.append((start, stop))
        return original(self, images, start, stop, **options)

    monkeypatch.setattr(apac.Classifier, "score", score)
    succeed("reproduce", "all", "--out", out, "--resume", "--passes", "1,4,8")
    assert computed == [(4, 8), (4, 8)]


def test_a_class_distinctive_recipe_is_compared_with_the_class_indistinctive_one(tmp_path, few, tiny):
    out = tmp_path / "report"
    result = succeed("reproduce", "mnist-cnn-distinctive", "--out", out)
    payload = json.loads((out / "results.json").read_text())["trainings"]
    assert [name for name in payload if len(payload[name]["evaluation"]["rows"]) == 2] == [
        "distinctive",
        "indistinctive",
    ]
    assert payload["distinctive"]["deformation"]["kind"] == "PerClass"
    page = (out / "report.html").read_text()
    for words in ("class-distinctive deformation", "class-indistinctive deformation", "not tried", "0.23 %"):
        assert f"<td>{words}</td>" in page
    assert "APAC, 2 × 16 passes" in page
    for words in ("class-distinctive deformation, passes with each of 2 sets", "class-indistinctive deformation"):
        assert f" test images, {words}<" in page
    wrong = [set(payload[name]["evaluation"]["wrong"]) for name in payload]
    only_one = [len(wrong[1] - wrong[0]), len(wrong[0] - wrong[1])]
    sentence = f"right for {only_one[0]} images with class-distinctive deformation alone, and for {only_one[1]} with"
    assert sentence in page
    assert sentence in " ".join(result.stdout.split())
    lines = (out / "results.csv").read_text().splitlines()
    assert [line.split(",")[:3] for line in lines[:2]] == [
        ["training", "rule", "passes"],
        ["distinctive", "plain", "1"],
    ]
    assert [line.split(",")[0] for line in lines[1:]] == ["distinctive"] * 3 + ["indistinctive"] * 3
    assert sorted(path.stem for path in out.glob("*.png")) == ["deformed-samples", "error-against-m", "misclassified"]
    assert "deciding, class-indistinctive deformation: 100 %" in result.stderr


def test_reports_of_two_recipes_are_not_mixed(tmp_path, few, tiny, no_figures):
    out = tmp_path / "report"
    succeed("reproduce", "mnist-cnn", "--out", out)
    for more in ([], ["--hours", 1]):
        assert "already holds a report" in refusal("reproduce", "mnist-cnn-distinctive", "--out", out, *more)
    assert "report of another recipe" in refusal("reproduce", "mnist-cnn-distinctive", "--out", out, "--resume")
    assert "holds the report of one recipe" in refusal("reproduce", "all", "--out", out)
    (out / "certified.png").write_bytes(b"of an earlier report")
    succeed("reproduce", "mnist-cnn-distinctive", "--out", out, "--overwrite")
    assert sorted(path.name for path in (out / "runs").iterdir() if (path / "run.json").exists()) == [
        "distinctive",
        "indistinctive",
    ]
    assert not (out / "certified.png").exists()


def test_nothing_is_overwritten_if_the_hours_are_too_few(tmp_path, few, tiny, no_figures, monkeypatch):
    monkeypatch.setattr("apac.training.budget.MEASURED_SECONDS", 0.0)
    for name, out in (("mnist-cnn", tmp_path / "one"), ("all", tmp_path / "all")):
        succeed("reproduce", name, "--out", out)
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        assert "allow more hours" in refusal("reproduce", name, "--out", out, "--overwrite", "--hours", 1e-9)
        assert "already holds a report" in refusal("reproduce", name, "--out", out)
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_hours_choose_the_epochs_and_a_resumed_training_keeps_them(tmp_path, few, tiny, no_figures, monkeypatch):
    monkeypatch.setattr("apac.paper.recipe.epochs_within", lambda *arguments: 5)
    out = tmp_path / "report"
    succeed("reproduce", "mnist-cnn", "--out", out, "--hours", 1)
    monkeypatch.setattr("apac.paper.recipe.epochs_within", lambda *arguments: pytest.fail("measured again"))
    for more in ([], ["--hours", 9]):
        succeed("reproduce", "mnist-cnn", "--out", out, "--resume", *more)
        payload = json.loads((out / "results.json").read_text())["trainings"]
        assert [payload[name]["config"]["epochs"] for name in ("deformed", "original")] == [5, 1]
        assert "apac reproduce mnist-cnn --seed 0 --epochs 5<" in (out / "report.html").read_text()
    succeed("reproduce", "mnist-cnn", "--out", out, "--resume", "--epochs", 5)
    sentence = refusal("reproduce", "mnist-cnn", "--out", out, "--resume", "--epochs", 6)
    assert "runs/deformed holds a run with other settings (epochs 5, not 6); resume it" in sentence


def test_only_one_option_may_set_the_epochs(tmp_path):
    ways: tuple[list[object], ...] = (["--hours", 1], ["--epochs", 2], ["--schedule", "paper"])
    for first, second in itertools.combinations(ways, 2):
        sentence = refusal("reproduce", "mnist-cnn", "--out", tmp_path / "r", *first, *second)
        assert "--hours, --epochs and --schedule paper each set the number of epochs; choose one" in sentence


def test_a_folder_with_other_settings_is_rejected_before_anything_starts(tmp_path, few, tiny, no_figures, monkeypatch):
    monkeypatch.setitem(recipes.RECIPES, "mnist-mlp", replace(recipes.RECIPES["mnist-cnn"], name="mnist-mlp"))
    monkeypatch.setattr(recipes, "TABLE", ("mnist-cnn", "mnist-mlp"))
    out = tmp_path / "all"
    succeed("reproduce", "mnist-mlp", "--out", out / "mnist-mlp")
    sentence = refusal("reproduce", "all", "--out", out, "--resume", "--seed", 1)
    assert "mnist-mlp/runs/deformed holds a run with other settings (seed 0, not 1); resume it" in sentence
    assert not (out / "mnist-cnn").exists()


def test_the_folder_of_the_table_is_not_used_for_a_recipe(tmp_path, few, tiny, no_figures):
    out = tmp_path / "all"
    result = succeed("reproduce", "all", "--out", out)
    assert (
        "mnist-cnn: 2 epochs with deformed data and 1 with original data, then M up to 16 and 1 certified rule"
        in result.stdout
    )
    assert "mnist-cnn: training, deformed data: 100 %" in result.stderr
    page = (out / "report.html").read_bytes()
    for more in ([], ["--resume"], ["--overwrite"]):
        sentence = refusal("reproduce", "mnist-cnn", "--out", out, *more)
        assert f"holds the paper's table, with a folder for each recipe; choose {out / 'mnist-cnn'}, or" in sentence
    sentence = refusal("reproduce", "mnist-cnn-distinctive", "--out", out, "--overwrite")
    assert "holds the paper's table, with a folder for each recipe; choose another folder." in sentence
    assert "is a file; a report needs a folder" in refusal("reproduce", "all", "--out", out / "report.html")
    assert (out / "report.html").read_bytes() == page
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "report.html").write_text("mine")
    assert "already holds a report" in refusal("reproduce", "all", "--out", tmp_path / "other")


def test_after_ctrl_c_before_anything_is_replaced_the_command_still_overwrites(
    tmp_path, few, tiny, no_figures, monkeypatch
):
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "report"
    succeed("reproduce", "mnist-cnn", "--out", out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    monkeypatch.setattr("apac.paper.recipe.epochs_within", stop)
    result = call("reproduce", "mnist-cnn", "--out", out, "--overwrite", "--hours", 1)
    assert result.exit_code == 130
    assert (
        "nothing was replaced; continue with: apac reproduce mnist-cnn --seed 0 --hours 1 --overwrite" in result.stderr
    )
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_ctrl_c_prints_the_command_that_continues_with_all_options(tmp_path, few, tiny, monkeypatch):
    def stop(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("apac.paper.reproduce.train", stop)
    monkeypatch.setattr("apac.paper.recipe.epochs_within", lambda *arguments: 5)
    more = ("--hours", 2.5, "--passes", "1,4", "--seed", 3, "--precision", "float32")
    result = call("reproduce", "all", "--out", tmp_path / "a b", *more)
    again = "apac reproduce all --seed 3 --passes 1,4 --hours 2.5 --precision float32 --resume"
    assert f"{again} --out '{tmp_path / 'a b'}'" in result.stderr


def test_the_precision_is_that_of_both_trainings_and_the_command_of_the_report_has_it(
    tmp_path, few, tiny, no_figures, monkeypatch
):
    monkeypatch.setattr("apac.training.precision.has_bfloat16", lambda: True)
    # The processor may not have it: the steps are taken in float32.
    for module in ("training.loop", "runs.network_check"):
        monkeypatch.setattr(f"apac.{module}.autocast", lambda precision, device: nullcontext())
    out = tmp_path / "report"
    succeed("reproduce", "mnist-cnn", "--out", out, "--precision", "bfloat16")
    payload = json.loads((out / "results.json").read_text())["trainings"]
    assert [payload[name]["config"]["precision"] for name in ("deformed", "original")] == ["bfloat16", "bfloat16"]
    assert "apac reproduce mnist-cnn --seed 0 --precision bfloat16<" in (out / "report.html").read_text()
    sentence = refusal("reproduce", "mnist-cnn", "--out", out, "--resume")
    assert "runs/deformed holds a run with other settings (precision" in sentence
    # A finished report needs no instructions for bfloat16.
    monkeypatch.setattr("apac.training.precision.has_bfloat16", lambda: False)
    succeed("reproduce", "mnist-cnn", "--out", out, "--precision", "bfloat16", "--resume")


def test_a_processor_without_bfloat16_is_refused_before_anything_is_replaced(
    tmp_path, few, tiny, no_figures, monkeypatch
):
    monkeypatch.setattr("apac.training.precision.has_bfloat16", lambda: False)
    out = tmp_path / "report"
    succeed("reproduce", "mnist-cnn", "--out", out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    sentence = refusal("reproduce", "mnist-cnn", "--out", out, "--overwrite", "--precision", "bfloat16")
    assert "no working instructions for bfloat16; use --precision float32" in sentence
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert "--precision must be" in refusal("reproduce", "mnist-cnn", "--out", out, "--precision", "half")


def test_help_names_every_recipe():
    shown = " ".join(call("reproduce", "--help").stdout.split())
    for name in recipes.RECIPES:
        assert name in shown
