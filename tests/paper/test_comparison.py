"""Comparison with the paper."""

from __future__ import annotations

from apac.evaluation.fixed import Row
from apac.paper import comparison
from apac.paper.recipe import PAPER_TABLE
from evaluations import evaluation


def test_the_summary_keeps_the_given_order_and_lists_the_papers_numbers():
    deformed = evaluation(0.0105, Row(1, 0.03, 0.03, 0.01), Row(16384, 0.0023, 0.0024, 0.0001))
    paper = PAPER_TABLE["mnist-cnn"]
    one = {"original": 1, "deformed": 1}
    summary = comparison.summary({"original": evaluation(0.022), "deformed": deformed}, paper, one)
    assert summary.rows == (
        ("original data", "plain", "2.20 % ± 0.46", "0.69 %"),
        ("deformed data", "plain", "1.05 % ± 0.32", "0.39 %"),
        ("deformed data", "APAC, 16,384 passes", "0.23 % ± 0.15", "0.23 %"),
    )
    rows = comparison.summary({"distinctive": deformed}, paper, {"distinctive": 2}).rows
    assert [row[3] for row in rows] == ["not tried"] * 2
    assert rows[1][1] == "APAC, 2 × 16,384 passes"
