"""The default of apac reproduce, which scripts/demo runs: a training, and a network that the report opens with."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import apac
from apac import data
from apac.data.base import Dataset
from apac.paper import recipes, reproduce, showcase
from apac.runs.labeled_images import LabeledImages
from commands import succeed
from weak_runs import weak_run

REASON = "mnist could not be downloaded: a mirror (no network); connect to the network and try again."


@pytest.fixture
def demo(few, monkeypatch) -> Dataset:
    """The demo with an epoch of a few digits, and with a weak network on these digits instead of CIFAR-10."""
    recipe = recipes.RECIPES["mnist-5k-cnn"]
    assert recipe.showcase == "cifar10-cnn"
    config = replace(recipe.config, epochs=1, batch_size=100)
    monkeypatch.setitem(
        recipes.RECIPES, "mnist-5k-cnn", replace(recipe, config=config, passes=(1, 16), certified=(), showcase="weak")
    )
    weak = weak_run(few)
    held_out = LabeledImages(weak.normalize(few.train_images[::4]), few.train_labels[::4], (), "mnist", own=True)
    monkeypatch.setattr(reproduce, "load", {"weak": weak}.__getitem__)
    monkeypatch.setattr(showcase, "images_held_out", lambda run, **options: held_out)
    monkeypatch.setattr(showcase, "SHOWCASE_PASSES", (1, 4))
    for figures in ("_corrected", "_samples"):  # slow to draw, and not what is tested here
        monkeypatch.setattr(f"apac.paper.report.{figures}", lambda result: {})
    return few


def test_the_report_opens_with_a_sentence_and_a_picture_and_says_what_is_chance(tmp_path, demo, monkeypatch):
    out = tmp_path / "report"
    printed = " ".join(succeed("reproduce", "--out", out).stdout.split())
    page = (out / "report.html").read_text()
    payload = json.loads((out / "results.json").read_text())
    evaluation = payload["showcase"]["evaluation"]
    wrong = [round(200 * error) for error in (evaluation["plain"], evaluation["rows"][-1]["product"])]
    opening, _, rest = page.partition("</figure>")
    assert "200 test images of MNIST" in opening
    assert "<h2>" not in opening  # nothing comes before the sentence and the picture
    for number in wrong:
        assert f" {number} " in opening
    for number in ("corrected", "corrupted"):
        assert f"{len(evaluation[number])} " in opening
    assert (out / "rule.png").stat().st_size > 2000
    for words in ("What is chance, and what is not", "original → deformed training", "plain → APAC"):
        assert words in rest
    assert "calibrated NLL" in printed
    assert opening.partition("<p>")[2].partition("</p>")[0] in printed

    # A second call repeats nothing.
    monkeypatch.setattr("apac.runs.train.run_epochs", lambda *a, **o: pytest.fail("trained again"))
    monkeypatch.setattr(apac.Classifier, "score", lambda *a, **o: pytest.fail("decided again"))
    succeed("reproduce", "--out", out, "--resume")
    assert json.loads((out / "results.json").read_text())["showcase"] == payload["showcase"]

    # Where the data set is not available, one line says so.
    def load(name: str, **options: object) -> Dataset:
        if name != "mnist-5k":
            raise apac.StorageError(REASON)
        return demo

    monkeypatch.setattr(data, "load", load)
    result = succeed("reproduce", "--out", out, "--resume")
    assert [line for line in result.stdout.splitlines() if "skipped" in line] == [
        f"skipped weak, which shows an effect far beyond chance: {REASON}"
    ]
    assert REASON in (out / "report.html").read_text()
    assert "showcase" not in json.loads((out / "results.json").read_text())
    assert not (out / "rule.png").exists()


def test_the_data_set_and_the_network_of_the_demo_are_those_of_cifar10():
    run = apac.load(str(recipes.RECIPES["mnist-5k-cnn"].showcase))
    assert run.data == "cifar10"
    assert run.config.validation_fraction > 0  # it has held-out images, on which the temperatures are fitted
