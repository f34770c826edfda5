"""apac tune, and what the other commands do with its choice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

import apac
from apac.data.base import Dataset
from apac.runs import tuning_file
from commands import refusal, succeed


@pytest.fixture
def tunable(few: Dataset, tmp_path: Path) -> Path:
    """A run that held out 120 of 400 images."""
    options = ("--epochs", 1, "--batch-size", 80, "--validation-fraction", 0.3)
    succeed("train", "--out", tmp_path / "tunable", *options)
    return tmp_path / "tunable"


def choose(run: Path, strength: float) -> apac.Choice:
    """Replace the choice of a tuned run."""
    stored = apac.load(run)
    assert stored.choice is not None
    choice = replace(stored.choice, strength=strength, combine="product")
    tuning_file.write_choice(run, choice, stored.deformation)
    return choice


def test_tune_prints_the_candidates_and_stores_the_choice_that_all_commands_use(tunable, digit):
    output = succeed("tune", tunable, "--passes", 4).stdout
    loaded = apac.load(tunable)
    choice = loaded.choice
    assert choice is not None
    assert (choice.images, choice.passes) == (120, 4)
    assert "120 held-out images, 4 passes" in output
    assert output.count("(chosen)") == 1
    assert choice.advice[:40] in " ".join(output.split())
    assert "120 images are few" in " ".join(output.split())
    for candidate in choice.candidates:
        assert f"{candidate.nll:.4f}" in output
    (tunable / "tuning.json").write_text("{}")
    assert "tuning.json is damaged; tune the run again, or remove the file" in refusal("evaluate", tunable)
    succeed("tune", tunable, "--passes", 4)  # as the sentence says
    assert apac.load(tunable).choice == choice
    with Image.open(tunable / "tuning.png") as figure:
        assert figure.size[0] > 100
    assert f"tuned: {choice.chosen}" in repr(loaded)
    choice = choose(tunable, 0.5)

    exported = succeed("export", tunable, tunable / "model.onnx").stdout
    assert "run.choice.apply(classifier) adds it" in " ".join(exported.split())
    tuned = succeed("evaluate", tunable, "--passes", "2").stdout
    assert "Decided by strength 0.5, product" in " ".join(tuned.split())
    assert json.loads((tunable / "evaluation.json").read_text())["strength"] == 0.5
    paper = succeed("evaluate", tunable, "--passes", "2", "--paper-rule", "--out", tunable / "paper").stdout
    assert "Decided by" not in paper
    assert json.loads((tunable / "paper" / "evaluation.json").read_text())["strength"] == 1

    assert "Decided by strength 0.5, product" in succeed("classify", tunable, digit[0], "--passes", 4).stdout
    assert "Decided by" not in succeed("classify", tunable, digit[0], "--plain").stdout
    for options, strength, temperature in (
        ((), 0.5, choice.chosen.temperatures[-1][1]),
        (("--combine", "sum"), 0.5, choice.candidate("sum").temperatures[-1][1]),
        (("--paper-rule",), 1, 1),
    ):
        record = json.loads(succeed("classify", tunable, digit[0], "--passes", 4, "--json", *options).stdout)[0]
        assert (record["strength"], record["temperature"]) == (strength, pytest.approx(temperature))
    record = json.loads(succeed("classify", tunable, digit[0], "--plain", "--json").stdout)[0]
    assert (record["strength"], record["temperature"]) == (0, choice.plain.temperatures[0][1])


def test_where_the_plain_prediction_is_chosen_evaluate_says_so(tunable):
    succeed("tune", tunable, "--passes", 1)
    choose(tunable, 0)
    output = " ".join(succeed("evaluate", tunable).stdout.split())
    assert "The plain prediction was tuned to be the better choice for this network; --paper-rule" in output
    assert not json.loads((tunable / "evaluation.json").read_text())["rows"]


def test_the_choice_can_be_written_elsewhere_and_goes_with_the_training(tunable, tmp_path):
    succeed("tune", tunable, "--passes", 1, "--out", tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / "tuning.json").exists()
    assert apac.load(tunable).choice is None
    (tmp_path / "elsewhere" / "tuning.json").rename(tunable / "tuning.json")
    assert apac.load(tunable).choice is not None
    succeed("train", "--out", tunable, "--epochs", 1, "--overwrite")
    assert apac.load(tunable).choice is None


def test_tune_refuses_in_one_sentence_what_it_cannot_do(run, tmp_path, few):
    sentence = refusal("tune", run)  # the data are only a part of it
    assert "mnist-5k has changed since this run was trained on it" in sentence
    assert "tune it from Python with apac.tune" in sentence
    succeed("train", "--out", tmp_path / "none", "--epochs", 1, "--validation-fraction", 0)
    sentence = refusal("tune", tmp_path / "none")
    assert "held out no training images (--validation-fraction 0); train it again with --validation-fraction 0.1" in (
        sentence
    )
    assert "holds no run" in refusal("tune", tmp_path / "nothing")
    assert "must be an integer of at least 1" in refusal("tune", run, "--passes", 0)


def test_tune_speaks_of_options(tunable, tmp_path):
    assert refusal("tune", tunable, "--data", "mnist").endswith("its training data, mnist-5k; omit --data mnist.")
    succeed("train", "--out", tmp_path / "small", "--epochs", 1, "--validation-fraction", 0.02)
    sentence = refusal("tune", tmp_path / "small", "--passes", 1)
    assert (
        "8 images are too few to tune on; 10 are needed, better some hundreds: train again with a larger " in sentence
    )
    assert sentence.endswith("--validation-fraction.")
    succeed("train", "--out", tmp_path / "plain", "--epochs", 1, "--plain")
    assert "there is no deformation" in refusal("tune", tmp_path / "plain")
