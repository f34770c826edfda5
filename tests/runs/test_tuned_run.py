"""A run with a choice of apac.tune decides by it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import apac
from apac.classify.choice import Candidate, Choice
from apac.runs.tuning_file import write_choice

CHOICE = Choice(
    0.5,
    "sum",
    images=1000,
    passes=64,
    seed=0,
    gain=0.1,
    gain_error=0.01,
    candidates=(
        Candidate(0.0, "product", 0.2, 0.5, 0.02, 0.1, 0.01, ((1, 1.5),)),
        Candidate(0.5, "product", 0.1, 0.42, 0.02, 0.02, 0.01, ((1, 1.2), (4, 0.9))),
        Candidate(0.5, "sum", 0.1, 0.4, 0.02, 0.0, 0.0, ((1, 1.1), (4, 0.7))),
    ),
)
PLAIN = replace(CHOICE, strength=0.0, combine="product")


@pytest.fixture
def tuned(copy: Path) -> apac.Run:
    write_choice(copy, CHOICE, apac.load(copy).deformation)
    return apac.load(copy)


def test_the_classifier_has_the_strength_the_combination_and_the_temperature_of_the_choice(tuned):
    assert tuned.choice == CHOICE
    assert repr(tuned).endswith("tuned: strength 0.5, sum)")
    classifier = tuned.classifier()
    assert classifier.deformation == tuned.deformation.scaled(0.5)
    assert (classifier.rule, classifier.combine, classifier.temperature) == (apac.Certified(), "sum", 0.7)
    assert tuned.classifier(apac.FixedPasses(1)).temperature == 1.1
    assert tuned.classifier(combine="product").temperature == 0.9
    assert tuned.classifier(apac.Exhaustive()).rule == apac.FixedPasses(64)  # scaled values are not equally likely
    paper = tuned.classifier(paper_rule=True)
    assert (paper.deformation, paper.combine, paper.temperature) == (tuned.deformation, "product", 1)


def test_where_the_plain_prediction_is_chosen_one_pass_decides(tuned, digits):
    run = replace(tuned, choice=PLAIN)
    classifier = run.classifier()
    assert (classifier.rule, classifier.deformation) == (apac.FixedPasses(1), apac.Compose())
    images = run.normalize((255 * digits[0][:5]).to(torch.uint8))
    plain = classifier.plain(images).double()
    # the decision runs in other batches than the plain prediction
    assert torch.allclose(classifier.decide(images).log_probabilities, (plain / 1.5).log_softmax(1), atol=1e-4)
    assert run.classifier(apac.Certified(limit=64)).rule == apac.FixedPasses(1)  # all passes would be identical
    assert run.classifier(apac.Certified(limit=64), paper_rule=True).rule == apac.Certified(limit=64)


def test_files_are_classified_by_the_choice(tuned, tmp_path):
    from PIL import Image

    path = tmp_path / "digit.png"
    Image.new("L", (28, 28), 255).save(path)
    rule = apac.FixedPasses(4)
    assert tuned.classify(path, rule).decision.temperature == pytest.approx(0.7)
    assert tuned.classify(path, rule).decision.combine == "sum"
    assert tuned.classify(path, rule, paper_rule=True).decision.temperature == 1
    assert tuned.classify(path, plain=True).decision.temperature == 1.5
    assert tuned.classify(path, plain=True, paper_rule=True).decision.temperature == 1


def test_a_damaged_choice_or_one_of_another_run_is_refused(copy):
    deformation = apac.load(copy).deformation
    path = write_choice(copy, CHOICE, deformation)
    payload = json.loads(path.read_text())
    unknown = {**payload["choice"], "strength": 9}
    cases: list[Any] = [
        {},
        {**payload, "choice": {}},
        {**payload, "choice": unknown},
        {**payload, "deformation": 1},
        [],
    ]
    first, *others = payload["choice"]["candidates"]
    bad_candidates = [
        {**first, "temperatures": []},
        {**first, "temperatures": [[1, 0.0]]},
        {**first, "temperatures": [[1, 5e-324]]},  # log-probabilities divided by it are infinite
        {**first, "temperatures": [[1, "x"]]},
        {**first, "temperatures": [[4, 1.0], [1, 1.0]]},
        {**first, "temperatures": [[0, 1.0]]},
        {**first, "combine": "mean"},
        {**first, "nll": float("nan")},
        {**first, "strength": 0.25},
    ]
    bad_values = [("images", "x"), ("passes", 0), ("seed", None), ("gain", "x"), ("notes", [1]), ("combine", "mean")]
    bad_values += [("candidates", [candidate, *others]) for candidate in bad_candidates] + [("candidates", [])]
    cases += [{**payload, "choice": {**payload["choice"], name: value}} for name, value in bad_values]
    for damaged in cases:
        path.write_text(json.dumps(damaged))
        with pytest.raises(apac.StorageError, match=r"tuning\.json is damaged; tune the run again, or remove the file"):
            apac.load(copy)
        assert apac.load(copy, paper_rule=True).choice is None
    write_choice(copy, CHOICE, apac.Flip())
    with pytest.raises(apac.InputError, match=r"tuning\.json belongs to a run with another deformation"):
        apac.load(copy)


def test_a_folder_with_the_name_of_a_shipped_run_holds_a_choice_for_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_choice(Path("mnist-cnn"), CHOICE, apac.load("mnist-cnn").deformation)
    assert apac.load("mnist-cnn").choice == CHOICE
