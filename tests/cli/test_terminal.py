"""Progress as lines without a terminal, and decisions as sentences and as JSON."""

from __future__ import annotations

import csv
import json
import math
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scipy.special import softmax

import apac
from apac.cli import terminal
from apac.evaluation.records import decision_records, records_to_csv
from apac.evaluation.reliability import Reliability
from apac.reporting.tables import Table
from apac.runs.classified import ClassifiedImages
from decisions import make_decision

CLASSES = ("cat", "dog", "eel")


def test_a_line_is_printed_when_a_task_starts_and_when_it_ends(capsys):
    with terminal.show_progress() as progress:
        for done in (1, 2, 3, 4, 4):
            progress("fetching", done, 4, "slowly")
        progress("deciding", 1, 1)
    assert capsys.readouterr().err.splitlines() == [
        "fetching: 25 %, slowly",
        "fetching: 100 %, slowly",
        "deciding: 100 %",
    ]


def test_a_long_task_has_a_line_every_few_seconds_with_the_time_left(capsys, monkeypatch):
    clock = iter(range(0, 100, 3))
    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    lines = terminal.Lines()
    for done in range(8):  # three seconds each
        lines("training", done, 8)
    assert capsys.readouterr().err.splitlines() == ["training: 0 %", "training: 50 %, 0.333/s, 12 s left"]


def test_on_a_terminal_there_is_a_progress_bar():
    code = (
        "import time\nfrom apac.cli.terminal import show_progress\n"
        "with show_progress() as progress:\n"
        "    for done in range(1, 4):\n"
        "        progress('training', done, 3, 'loss 0.5'); time.sleep(0.1)\n"
    )
    master, slave = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", code], stderr=slave)
    os.close(slave)
    data = b""
    with suppress(OSError):  # the end of a terminal is an error
        while part := os.read(master, 4096):
            data += part
    os.close(master)
    assert process.wait() == 0
    seen = data.decode()
    assert "━" in seen
    assert "loss 0.5" in seen
    assert "100%" in seen


def classified(
    decision: apac.Decision, classes: tuple[str, ...], notes: dict[str, tuple[str, ...]]
) -> ClassifiedImages:
    return ClassifiedImages(tuple(map(Path, notes)), decision, classes, tuple(notes.values()), {})


def record_of(
    decision: apac.Decision, classes: tuple[str, ...] = CLASSES, notes: tuple[str, ...] = ()
) -> dict[str, Any]:
    (record,) = decision_records(classified(decision, classes, {"my image.png": notes}))
    return record


FAILED: dict[str, Any] = {"labels": -1, "runners_up": -1, "margins": math.nan, "margin_errors": math.nan}


@pytest.mark.parametrize(
    ("decision", "sentence"),
    [
        (
            make_decision(["fixed"], passes=256),
            "cat, probability 0.72 (after 256 passes; dog 0.26, eel 0.02)",
        ),
        (
            make_decision(["certified"], labels=2, runners_up=0, passes=48, log_scores=[[-9.0, -17.0, -0.001]]),
            "eel, probability 0.9999 (settled after 48 passes; cat 0.0001, dog < 0.0001)",
        ),
        (
            make_decision(["limit"], passes=16_384, margins=0.002, log_scores=[[-0.7, -0.702, -8.0]]),
            "cat, probability 0.50 (not settled after 16,384 passes; dog 0.50, eel 0.0003)",
        ),
        (
            make_decision(["certified"], passes=2048, clipped=1200),
            "cat, probability 0.72 (settled after 2,048 passes, with the clip active in 1,200; dog 0.26, eel 0.02)",
        ),
        (
            make_decision(["limit"], margins=0.0, margin_errors=0.0),
            "cat, probability 0.72 (not settled after 32 passes; tied with dog)",
        ),
        (
            make_decision(["certified"], log_scores=[[-0.0, -99.0, -999.0]]),
            "cat, probability > 0.9999 (settled after 32 passes; dog < 0.0001, eel < 0.0001)",
        ),
        (
            make_decision(["nan"], passes=16, **FAILED),
            "not decided: after 16 passes the network returned NaN or an infinite logit",
        ),
    ],
    ids=["fixed", "certified", "limit", "clip active", "tie", "extreme", "nan"],
)
def test_a_decision_is_printed_as_a_sentence(decision, sentence, capsys):
    terminal.print_record(record_of(decision))
    assert capsys.readouterr().out == f"my image.png: {sentence}\n"


def test_how_often_such_answers_were_right_is_printed_and_recorded(capsys, tmp_path):
    images = classified(make_decision(["certified", "limit"]), CLASSES, {"a.png": (), "b.png": ()})
    reliability = Reliability(
        "product", None, 1.0, "", images=(60, 1204, 9), right=(20, 1011, 9), bounds=(0.5, 0.8, 1.0)
    )
    records = decision_records(images, reliability=reliability)
    assert [record["settled"] for record in records] == [True, False]
    for record in records:
        assert (record["bin_images"], record["bin_accuracy"]) == (1204, 1011 / 1204)
        terminal.print_record(record)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == lines[3] == "  of 1,204 test images with a probability of 0.5 to 0.8, 84 % were right"
    table = list(csv.DictReader(records_to_csv(records, CLASSES).splitlines()))
    assert [line["settled"] for line in table] == ["True", "False"]
    assert float(table[0]["bin_accuracy"]) == 1011 / 1204
    assert table[0]["bin_images"] == "1204"


@pytest.mark.parametrize(("right", "text"), [(1000, "100 %"), (999, "99.9 %"), (9999, "99.9 %"), (990, "99.0 %")])
def test_not_all_right_is_never_rounded_to_all(right, text, capsys):
    images = 10_000 if right > 1000 else 1000
    reliability = Reliability("product", None, 1.0, "", images=(images,), right=(right,), bounds=(1.0,))
    shown = classified(make_decision(["certified"]), CLASSES, {"a.png": ()})
    terminal.print_record(decision_records(shown, reliability=reliability)[0])
    assert f"a probability of 0 to 1, {text} were right" in capsys.readouterr().out


def test_the_conversion_of_an_image_is_printed_below(capsys):
    terminal.print_record(record_of(make_decision(["certified"]), notes=("inverted", "resized from 300 × 260")))
    assert capsys.readouterr().out.splitlines()[1:] == ["  converted: inverted, resized from 300 × 260"]


def test_records_have_the_decision_of_each_image_in_order():
    decision = make_decision(
        ["certified", "limit"],
        labels=[1, 2],
        runners_up=[0, 1],
        margins=[3.0, 0.5],
        margin_errors=[0.25, 0.75],
        passes=[48, 64],
        clipped=[0, 3],
        log_scores=[[-3.5, -0.5, -9.0], [-7.0, -1.5, -1.0]],
    )
    records = decision_records(classified(decision, CLASSES, {"a.png": ("inverted",), "b.png": ()}))
    for record, scores in zip(records, decision.log_scores.tolist(), strict=True):
        probabilities = record.pop("probabilities")
        assert list(probabilities.values()) == pytest.approx(softmax(scores))
        assert record.pop("probability") == probabilities[record["label"]]
    assert records == [
        {
            "image": "a.png",
            "label": "dog",
            "runner_up": "cat",
            "stopped": "certified",
            "settled": True,
            "bin_accuracy": None,
            "bin_images": None,
            "bin_probability": None,
            "passes": 48,
            "clipped": 0,
            "combine": "product",
            "plain": False,
            "strength": 1.0,
            "temperature": 1.0,
            "margin": 3.0,
            "margin_error": 0.25,
            "mean_log_probability": -0.5,
            "standard_error": 0.05,
            "log_scores": {"cat": -3.5, "dog": -0.5, "eel": -9.0},
            "notes": ["inverted"],
        },
        {
            "image": "b.png",
            "label": "eel",
            "runner_up": "dog",
            "stopped": "limit",
            "settled": False,
            "bin_accuracy": None,
            "bin_images": None,
            "bin_probability": None,
            "passes": 64,
            "clipped": 3,
            "combine": "product",
            "plain": False,
            "strength": 1.0,
            "temperature": 1.0,
            "margin": 0.5,
            "margin_error": 0.75,
            "mean_log_probability": -1.0,
            "standard_error": 0.05,
            "log_scores": {"cat": -7.0, "dog": -1.5, "eel": -1.0},
            "notes": [],
        },
    ]


def test_json_has_null_for_nan_and_infinity():
    unknown = record_of(make_decision(["nan"], passes=0, log_scores=[[math.nan] * 3], **FAILED))
    assert (unknown["label"], unknown["runner_up"]) == (None, None)
    assert (unknown["margin"], unknown["margin_error"], unknown["mean_log_probability"]) == (None, None, None)
    assert unknown["log_scores"] == dict.fromkeys(CLASSES)
    for answer in (unknown, record_of(make_decision(["fixed"], margin_errors=math.nan))):
        assert json.loads(json.dumps(answer, allow_nan=False)) == answer


def test_an_image_that_a_network_fails_on_is_reported_and_the_others_are_decided(capsys):
    """From the classifier to the sentence."""
    import torch

    table = torch.tensor([[9.0, 30.0, 0.0], [0.0, math.nan, 0.0]], dtype=torch.float64)
    classifier = apac.Classifier(lambda images: table[images[:, 0, 0, 0].long()], apac.Compose())
    decision = classifier.decide(torch.arange(2.0).view(2, 1, 1, 1))
    records = decision_records(classified(decision, CLASSES, {"a.png": (), "b.png": ()}))
    json.dumps(records, allow_nan=False)
    for record in records:
        terminal.print_record(record)
    assert capsys.readouterr().out.splitlines() == [
        "a.png: dog, probability > 0.9999 (settled after 32 passes; cat < 0.0001, eel < 0.0001)",
        "b.png: not decided: after 0 passes the network returned NaN or an infinite logit",
    ]


def test_brackets_in_a_table_are_no_markup(capsys):
    terminal.print_table(Table("[bold]cats", ("[red]", "error"), (("apple [red]", "1.00 %"), ("apple [green]", "2 %"))))
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("[bold]cats", "[red]", "apple [red]", "apple [green]"))
