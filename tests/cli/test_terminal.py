"""Progress as lines without a terminal, and decisions as sentences and as JSON."""

from __future__ import annotations

import json
import math
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from scipy.special import softmax

import apac
from apac.cli import terminal
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
    monkeypatch.setattr(terminal.time, "monotonic", lambda: float(next(clock)))
    lines = terminal.Lines()
    for done in range(8):  # three seconds each
        lines("training", done, 8)
    assert capsys.readouterr().err.splitlines() == ["training: 0 %", "training: 50 %, 12 s left"]


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
    (record,) = terminal.decision_records(classified(decision, classes, {"my image.png": notes}))
    return record


ONE_CLASS: dict[str, Any] = {"runners_up": -1, "margins": math.inf, "margin_errors": 0.0, "log_scores": [[0.0]]}
FAILED: dict[str, Any] = {"labels": -1, "runners_up": -1, "margins": math.nan, "margin_errors": math.nan}


@pytest.mark.parametrize(
    ("decision", "sentence"),
    [
        (
            make_decision(["fixed"], passes=256, margins=2.5, margin_errors=0.0625),
            "cat  (after 256 passes; ahead of dog by 2.500 ± 0.062)",
        ),
        (
            make_decision(["certified"], labels=2, runners_up=0, passes=48, margins=4.25, margin_errors=0.5),
            "eel  (certified after 48 passes; ahead of cat by 4.250 ± 0.500)",
        ),
        (
            make_decision(["limit"], passes=16_384, margins=0.002, margin_errors=0.003),
            "cat  (not certified after 16,384 passes; ahead of dog by 0.002 ± 0.003)",
        ),
        (
            make_decision(["certified"], passes=2048, clipped=1200),
            "cat  (certified after 2,048 passes, with the clip active in 1,200; ahead of dog by 1.000 ± 0.100)",
        ),
        (
            make_decision(["limit"], margins=0.0, margin_errors=0.0),
            "cat  (not certified after 32 passes; tied with dog)",
        ),
        (
            make_decision(["fixed"], passes=9, margins=1.5, margin_errors=math.nan),  # as after a single pass
            "cat  (after 9 passes; ahead of dog by 1.500)",
        ),
        (
            make_decision(["nan"], passes=16, **FAILED),
            "not decided: after 16 passes the network returned NaN or an infinite logit",
        ),
    ],
    ids=["fixed", "certified", "limit", "clip active", "tie", "error unknown", "nan"],
)
def test_a_decision_is_printed_as_a_sentence(decision, sentence, capsys):
    terminal.print_record(record_of(decision))
    first, *others = capsys.readouterr().out.splitlines()
    assert first == f"my image.png: {sentence}"
    # the geometric mean of the passes, normalized
    expected = [] if decision.stopped == ("nan",) else ["  probability: cat 71.53 %, dog 26.31 %, eel 2.16 %"]
    assert others == expected


@pytest.mark.parametrize(("reason", "text"), [("certified", "certified after"), ("fixed", "after")])
def test_with_one_class_there_is_no_runner_up(reason, text, capsys):
    terminal.print_record(record_of(make_decision([reason], passes=16, **ONE_CLASS), ("cat",)))
    assert capsys.readouterr().out.splitlines()[0] == f"my image.png: cat  ({text} 16 passes; the only class)"


def test_the_conversion_of_an_image_is_printed_below(capsys):
    terminal.print_record(record_of(make_decision(["certified"]), notes=("inverted", "resized from 300 × 260")))
    assert capsys.readouterr().out.splitlines()[2:] == ["  converted: inverted, resized from 300 × 260"]


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
    records = terminal.decision_records(classified(decision, CLASSES, {"a.png": ("inverted",), "b.png": ()}))
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
            "passes": 48,
            "clipped": 0,
            "combine": "product",
            "plain": False,
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
            "passes": 64,
            "clipped": 3,
            "combine": "product",
            "plain": False,
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
    alone = record_of(make_decision(["certified"], **ONE_CLASS), ("cat",))
    assert (alone["label"], alone["runner_up"], alone["margin"], alone["margin_error"]) == ("cat", None, None, 0.0)
    for answer in (unknown, alone, record_of(make_decision(["fixed"], margin_errors=math.nan))):
        assert json.loads(json.dumps(answer, allow_nan=False)) == answer


def test_an_image_that_a_network_fails_on_is_reported_and_the_others_are_decided(capsys):
    """From the classifier to the sentence."""
    import torch

    table = torch.tensor([[9.0, 30.0, 0.0], [0.0, math.nan, 0.0]], dtype=torch.float64)
    classifier = apac.Classifier(lambda images: table[images[:, 0, 0, 0].long()], apac.Compose())
    decision = classifier.decide(torch.arange(2.0).view(2, 1, 1, 1))
    records = terminal.decision_records(classified(decision, CLASSES, {"a.png": (), "b.png": ()}))
    json.dumps(records, allow_nan=False)
    for record in records:
        terminal.print_record(record)
    assert capsys.readouterr().out.splitlines() == [
        "a.png: dog  (certified after 32 passes; ahead of cat by 21.000 ± 0.000)",
        "  probability: dog 100.00 %, cat 0.00 %, eel 0.00 %",
        "b.png: not decided: after 0 passes the network returned NaN or an infinite logit",
    ]
