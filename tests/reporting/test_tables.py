"""Tables of results."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy import stats

from apac.classify.scores import Scores
from apac.evaluation.certified import Agreement, Difference
from apac.evaluation.fixed import Row
from apac.reporting import tables
from decisions import make_decision
from evaluations import DECISIONS, certified, evaluation


def test_the_changes_are_a_sentence_that_says_what_may_be_chance():
    assert tables.changes(evaluation(0.01)) == (
        "APAC corrects 2 and corrupts 1 of the 1,000 plain predictions: a difference of 1 image, which may be chance "
        "(McNemar p = 1)."
    )


@pytest.mark.parametrize(
    ("corrected", "corrupted", "words"),
    [
        (812, 113, "plain predictions: far beyond chance (McNemar p = "),
        (30, 10, "plain predictions: beyond chance (McNemar p = 0.0022)"),
        (20, 8, "plain predictions: probably not chance (McNemar p = 0.036)"),
        (0, 9, "the plain prediction is better here, beyond chance (McNemar p = 0.0039)"),
        (9, 4, "a difference of 5 images, which may be chance (McNemar p = 0.27)"),
        (0, 0, "a difference of 0 images, which may be chance (McNemar p = 1)"),
    ],
)
def test_the_words_follow_the_p_value(corrected, corrupted, words):
    p = stats.binomtest(corrected, corrected + corrupted).pvalue if corrected + corrupted else 1.0
    assert words in tables.describe_changes(corrected, corrupted, p, 10_000)


def test_the_table_of_the_certified_rule_has_its_numbers():
    decision = make_decision(["certified"] * 3 + ["limit"], passes=[32, 48, 64, 2048])
    numbers = {"images": 4000, "mean": 1234.56, "median": 48.0, "percentile99": 16384.0, "unsettled": 50}
    shown = tables.certified(certified(decision, error=0.001, wrong=0.0315, clipped=6, **numbers), plain=0.0425)
    assert shown.title == "4,000 test images, probability of settling falsely at most 0.001"
    assert {row[0]: row[1] for row in shown.rows} == {
        "test error, plain": "4.25 %",
        "test error, APAC": "3.15 %",
        "passes, mean": "1,234.6",
        "passes, median": "48",
        "passes, 99th percentile": "16,384",
        "not settled, limit 16,384": "50 of 4,000 (1.25 %)",
        "settled with the clip active": "6 of 4,000 (0.15 %)",
        "time": "2.0 s",
    }


def test_the_table_names_images_that_were_not_decided():
    shown = tables.certified(certified(DECISIONS["one not decided"]), plain=0.0)
    assert shown.rows[-1] == ("not decided: NaN", "1 of 3 (33.33 %)")


def test_several_errors_are_listed_from_the_largest_with_the_decisions_that_differ():
    log = torch.tensor([[-1.0, -2.0], [-2.0, -1.0], [-1.0, -2.0]], dtype=torch.float64)
    scores = Scores(64, 64 * log, 64 * log**2, 64 * log.exp(), 64 * log.exp() ** 2)
    fixed = replace(evaluation(0.05, Row(1, 0.2, 0.2, 0.1), Row(64, 0.02, 0.02, 0.01)), scores=scores)
    strict = certified(
        make_decision(["certified", "certified", "limit"], labels=[0, 1, 0], passes=[48, 64, 1024]), error=0.01
    )
    loose = certified(make_decision(["certified"] * 3, labels=[0, 0, 1], passes=16), error=0.3, wrong=0.1)
    shown = tables.certified_by_error([strict, loose], fixed)
    assert "64 passes" in shown.title
    assert shown.rows == (
        ("0.3", "16.0", "16", "16", "0", "2", "10.00 %"),
        ("0.01", "378.7", "64", "1,005", "1", "0", "2.00 %"),
    )


def test_the_agreement_names_every_difference():
    differ = (
        Difference(12, certified=4, fixed=9, passes=1040, margin=0.125, margin_error=0.03125, fixed_margin=0.0625),
        Difference(977, certified=7, fixed=1, passes=48, margin=2.0, margin_error=0.5, fixed_margin=1.5),
    )
    agreement = Agreement(16_384, 9_950, differ, (3, 5, 8), 0.0031, 5000.0)
    assert tables.agreement(agreement, certified(DECISIONS["one image"])).splitlines() == [
        "2 of 9,950 settled answers and 3 of those not settled differ from the decisions after 16,384 "
        "passes, which have 0.31 % error and took 5,000 s, 2,500 times as long.",
        "  image 12: settled on 4 by 0.1250 ± 0.0312 after 1,040 passes, finally 9 by 0.0625",
        "  image 977: settled on 7 by 2.0000 ± 0.5000 after 48 passes, finally 1 by 1.5000",
    ]


def test_full_agreement_is_one_sentence():
    shown = tables.agreement(Agreement(64, 3, (), (), 0.0, 4.0), certified(DECISIONS["one image"]))
    assert shown == (
        "0 of 3 settled answers and 0 of those not settled differ from the decisions after 64 passes, "
        "which have 0.00 % error and took 4 s, 2.0 times as long."
    )
