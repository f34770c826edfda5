"""apac evaluate."""

from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import apac
from apac.runs import folder as run_folder
from apac.runs.labeled_images import images_held_out
from commands import call, refusal, succeed

pytestmark = pytest.mark.usefixtures("no_drawing")


def test_evaluate_prints_the_table_and_writes_json_and_csv(run, few):
    result = succeed("evaluate", run, "--passes", "4,1")
    payload = json.loads((run / "evaluation.json").read_text())
    lines = list(csv.DictReader((run / "evaluation.csv").read_text().splitlines()))
    assert [row["passes"] for row in payload["rows"]] == [1, 4]
    assert payload["images"] == 200
    assert [float(line["product_error"]) for line in lines] == [
        payload["plain"],
        *(row["product"] for row in payload["rows"]),
    ]
    for error in (payload["plain"], payload["rows"][1]["product"], payload["rows"][1]["top2"]):
        assert f"{100 * error:.2f} %" in result.stdout
    assert f"corrects {len(payload['corrected'])} and corrupts {len(payload['corrupted'])}" in result.stdout
    product = next(part for part in payload["measures"] if (part["rule"], part["passes"]) == ("product", 4))
    assert f"to {product['calibrated']['nll']['value']:.3f} (" in result.stdout
    assert float(lines[2]["product_calibrated_nll"]) == product["calibrated"]["nll"]["value"]
    written = result.stdout.replace("\n", "").rpartition("wrote")[2]
    for name in ("confusion.png", "reliability.png", "risk.png"):
        assert name in written
        assert (run / name).exists()


def test_temperatures_are_fitted_on_held_out_images_or_cross_fitted(run, few, monkeypatch):
    """The run was trained on other images than the few, until it does not tell."""
    held_out = images_held_out(replace(apac.load(run), folder=None))
    assert "Temperatures were cross-fitted" in succeed("evaluate", run, "--passes", 2).stdout
    assert json.loads((run / "evaluation.json").read_text())["held_out"] == 0
    settings = json.loads((run / "run.json").read_text())
    del settings["images"]
    (run / "run.json").write_text(json.dumps(settings))
    assert "Temperatures were cross-fitted" in succeed("evaluate", run, "--passes", 2).stdout  # there are too few
    module = sys.modules["apac.cli.evaluate_images"]
    monkeypatch.setattr(module, "MIN_HELD_OUT", len(held_out.images))
    result = succeed("evaluate", run, "--passes", 2)
    assert f"fitted on {len(held_out.images)} training images" in result.stdout


def test_classify_quotes_how_often_such_answers_were_right(run, few, digit):
    assert "test images" not in succeed("classify", run, digit[0]).stdout
    succeed("evaluate", run, "--rule", "certified", "--limit", 32)
    (answer,) = json.loads(succeed("classify", run, digit[0], "--limit", 32, "--json").stdout)
    lines = list(csv.DictReader((run / "certified.csv").read_text().splitlines()))
    low, high = answer["bin_probability"]
    assert low <= answer["probability"] <= high
    such = [line["label"] == line["truth"] for line in lines if low < float(line["probability"]) <= high]
    assert len(such) >= 20
    assert (answer["bin_images"], answer["bin_accuracy"]) == (len(such), np.mean(such))
    text = succeed("classify", run, digit[0], "--limit", 32).stdout
    assert f"of {len(such)} test images with a probability of {low:g} to {high:g}, " in text
    for options in (["--limit", 64], ["--passes", 16], ["--combine", "sum"], ["--plain"]):  # were not evaluated
        (answer,) = json.loads(succeed("classify", run, digit[0], "--json", *options).stdout)
        assert answer["bin_accuracy"] is None


def test_the_evaluation_of_other_data_is_not_quoted(run, few, monkeypatch):
    monkeypatch.setattr("apac.runs.labeled_images.data_name", lambda data: "mnist")
    succeed("evaluate", run, "--data", "mnist", "--passes", 2)
    assert not (run / "reliability.json").exists()
    assert not list(run.rglob("reliability.json"))


def test_a_second_evaluation_computes_no_pass_again(run, few, monkeypatch):
    first = succeed("evaluate", run, "--passes", "1,4")
    payload, files = (run / "evaluation.json").read_text(), {path: path.stat().st_mtime_ns for path in scores(run)}
    assert {path.name.partition("-")[2] for path in files} >= {"1.safetensors", "4.safetensors"}

    def never(*arguments: object, **options: object) -> None:
        raise AssertionError("these passes are cached")

    with monkeypatch.context() as patched:
        patched.setattr(apac.Classifier, "score", never)
        second = succeed("evaluate", run, "--passes", "1,4")
        succeed("evaluate", run, "--passes", "4")
    assert second.stdout == first.stdout
    assert "deciding" not in second.stderr
    assert {path: path.stat().st_mtime_ns for path in scores(run)} == files
    succeed("evaluate", run, "--passes", "1,4")
    assert (run / "evaluation.json").read_text() == payload


def test_another_seed_is_another_evaluation(run, few):
    results = [call("evaluate", run, "--passes", "2", "--seed", seed) for seed in (5, 6)]
    assert all("deciding: 100 %" in result.stderr for result in results)
    assert json.loads((run / "evaluation.json").read_text())["seed"] == 6


def test_a_smaller_evaluation_does_not_replace_a_larger_one(run, few):
    succeed("evaluate", run, "--passes", "1,4")
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    result = succeed("evaluate", run, "--passes", "2", "--seed", 3)
    before["reliability.json"] = (run / "reliability.json").read_bytes()  # of 2 passes was added
    assert "200 images with 1, 4 passes; --overwrite replaces it" in " ".join(result.stdout.split())
    assert "│ APAC     │      2 │" in result.stdout
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
    succeed("evaluate", run, "--passes", "2", "--seed", 3, "--overwrite")
    assert json.loads((run / "evaluation.json").read_text())["seed"] == 3


def scores(run: Path) -> list[Path]:
    return sorted((run / "scores").iterdir())


def row(stdout: str, name: str) -> str:
    """The value next to a name in a printed table."""
    match = re.search(rf"{re.escape(name)}\s*│\s*(.*?)\s*│", stdout)
    assert match is not None, name
    return match.group(1)


def test_certified_evaluation_prints_and_writes_the_passes_of_every_image(run, few):
    options = ["--error", 0.1, "--limit", 64, "--against", 64, "--seed", 2]
    result = succeed("evaluate", run, "--rule", "certified", *options)
    truth = few.test_labels.numpy()
    lines = list(csv.DictReader((run / "certified.csv").read_text().splitlines()))
    passes, labels = (np.array([int(line[name]) for line in lines]) for name in ("passes", "label"))
    stopped = np.array([line["stopped"] for line in lines])
    assert [int(line["truth"]) for line in lines] == truth.tolist()
    assert set(stopped) == {"certified", "limit"}
    assert passes.max() == 64  # the --limit
    assert (passes[stopped == "limit"] == 64).all()

    payload = json.loads((run / "certified.json").read_text())
    assert payload["rule"] == {"kind": "Certified", "error": 0.1, "limit": 64, "clip": 30.0}
    assert (payload["images"], payload["seed"], payload["failed"]) == (200, 2, 0)
    assert payload["mean"] == pytest.approx(passes.mean())
    assert payload["median"] == pytest.approx(np.median(passes))
    assert payload["percentile99"] == pytest.approx(np.percentile(passes, 99))
    assert payload["unsettled"] == (stopped == "limit").sum()
    assert payload["wrong"] == pytest.approx((labels != truth).mean())
    loaded = apac.load(run)
    with torch.no_grad():
        plain = loaded.network(loaded.normalize(few.test_images)).argmax(1).numpy()
    assert payload["plain"] == pytest.approx((plain != truth).mean())

    assert row(result.stdout, "passes, mean") == f"{passes.mean():.1f}"
    assert row(result.stdout, "passes, median") == f"{np.median(passes):.0f}"
    assert row(result.stdout, "passes, 99th percentile") == f"{np.percentile(passes, 99):.0f}"
    unsettled = (stopped == "limit").sum()
    assert row(result.stdout, "not settled, limit 64") == f"{unsettled} of 200 ({100 * unsettled / 200:.2f} %)"
    assert row(result.stdout, "test error, plain") == f"{100 * payload['plain']:.2f} %"
    assert row(result.stdout, "test error, APAC") == f"{100 * payload['wrong']:.2f} %"
    assert "at most 0.1" in " ".join(result.stdout.split())
    for name in ("certified.json", "certified.csv", "passes.png"):
        assert name in result.stdout.replace("\n", "").rpartition("wrote")[2]
    with Image.open(run / "passes.png") as picture:
        assert picture.format == "PNG"
        assert np.asarray(picture.convert("L")).std() > 5

    # The images that 64 passes decide otherwise, by the cached sums of those passes.
    (kept,) = (run / "scores").glob("*-64.safetensors")
    fixed = load_file(kept)["log_sum"].argmax(1).numpy()
    others = [np.flatnonzero((stopped == why) & (labels != fixed)).tolist() for why in ("certified", "limit")]
    against = payload["against"]
    assert against["passes"] == 64
    assert against["certified"] == (stopped == "certified").sum()
    assert [difference["image"] for difference in against["differ"]] == others[0]
    assert against["differ_at_limit"] == others[1] == []  # they took the same 64 passes
    assert against["wrong"] == pytest.approx((fixed != truth).mean())
    assert f"{len(others[0])} of {against['certified']} settled answers and {len(others[1])} of those" in " ".join(
        result.stdout.split()
    )
    assert f"have {100 * against['wrong']:.2f} % error" in result.stdout
    assert "deciding with 64 passes: 100 %" in result.stderr


def test_the_option_that_is_wrong_is_named(run):
    assert refusal("evaluate", run, "--rule", "certified", "--against", 0).startswith("apac: --against must be")
    assert "--passes must be" in refusal("evaluate", run, "--passes", "0")
    assert "--on-unreadable must be refuse or skip" in refusal("evaluate", run, "--on-unreadable", "ignore")


def test_without_against_nothing_is_compared(run, few):
    result = succeed("evaluate", run, "--rule", "certified", "--limit", 16)
    payload = json.loads((run / "certified.json").read_text())
    assert "against" not in payload
    assert payload["rule"] == {"kind": "Certified", "error": 1e-4, "limit": 16, "clip": 30.0}
    assert payload["mean"] == 16
    assert "settled answers and" not in result.stdout


def test_a_shipped_network_is_evaluated_into_a_folder_of_its_name(tmp_path, few, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = {path: path.stat().st_mtime_ns for path in run_folder.PRETRAINED.rglob("*")}
    succeed("evaluate", "mnist-cnn", "--passes", "1,2")
    assert (tmp_path / "mnist-cnn" / "evaluation.json").exists()
    assert {path: path.stat().st_mtime_ns for path in run_folder.PRETRAINED.rglob("*")} == shipped
