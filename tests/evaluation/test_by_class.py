"""Predictions by class, compared with scikit-learn."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from apac.evaluation.by_class import Predictions

metrics = pytest.importorskip("sklearn.metrics")


@settings(max_examples=25)
@given(st.integers(2, 6), st.integers(1, 60), st.integers(0, 2**31))
def test_the_confusion_matrix_and_the_errors_are_those_of_scikit_learn(size, count, seed):
    truth, plain, apac = np.random.default_rng(seed).integers(size, size=(3, count))
    names = tuple(f"class {c}" for c in range(size))
    predictions = Predictions(names, torch.from_numpy(truth), torch.from_numpy(plain), torch.from_numpy(apac))
    for rule, predicted in (("plain", plain), ("apac", apac)):
        expected = metrics.confusion_matrix(truth, predicted, labels=range(size))
        assert predictions.confusion(rule).tolist() == expected.tolist()
        recalls = metrics.recall_score(truth, predicted, labels=range(size), average=None, zero_division=np.nan)
        errors = [getattr(error, rule) for error in predictions.class_errors()]
        assert [error for error in errors if error is not None] == pytest.approx(1 - recalls[~np.isnan(recalls)])
        assert [error is None for error in errors] == np.isnan(recalls).tolist()


def test_an_image_that_is_not_decided_is_wrong_and_in_no_column():
    truth, apac = torch.tensor([0, 0, 1]), torch.tensor([-1, 0, 1])
    predictions = Predictions(("a", "b"), truth, truth, apac, ("x/1.png", "x/2.png", "y/1.png"))
    assert predictions.confusion("apac").tolist() == [[1, 0], [0, 1]]
    assert [(error.plain, error.apac) for error in predictions.class_errors()] == [(0.0, 0.5), (0.0, 0.0)]
    lines = list(csv.DictReader(predictions.misclassified_csv().splitlines()))
    assert lines == [{"image": "0", "file": "x/1.png", "label": "a", "plain": "a", "apac": ""}]


def test_csv_has_the_numbers_of_both_rules():
    truth, plain, apac = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), torch.tensor([0, 0, 0])
    predictions = Predictions(("a, b", "c", "unused"), truth, plain, apac)
    lines = list(csv.reader(predictions.confusion_csv().splitlines()))
    assert lines[0] == ["rule", "label", "a, b", "c", "unused"]
    assert lines[1] == ["plain", "a, b", "1", "1", "0"]
    assert lines[5] == ["apac", "c", "1", "0", "0"]
    assert predictions.classes_csv().splitlines()[1:] == ['"a, b",2,0.5,0.0', "c,1,0.0,1.0", "unused,0,,"]
