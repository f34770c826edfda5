"""Stored evaluations that must not be replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import apac
from apac.evaluation.stored import check_data, describe_larger
from apac.runs.labeled_images import LabeledImages


def fixed(images: int, *passes: int) -> dict[str, Any]:
    return {"images": images, "rows": [{"passes": number} for number in passes]}


def certified(images: int = 10, error: float = 1e-4, limit: int = 64, against: int = 0) -> dict[str, Any]:
    payload = {"images": images, "rule": {"error": error, "limit": limit}}
    return payload | ({"against": {"passes": against}} if against else {})


@pytest.mark.parametrize(
    ("stored", "new", "described"),
    [
        (fixed(10, 1, 4), fixed(10, 1, 4), None),
        (fixed(10, 1, 4), fixed(20, 4, 16), None),
        (fixed(10), fixed(10, 1), None),
        (fixed(10, 1, 4), fixed(10, 1, 2), "10 images with 1, 4 passes"),
        (fixed(10, 1, 4), fixed(10, 64), None),
        (fixed(10, 1, 64), fixed(10, 64), "10 images with 1, 64 passes"),
        (fixed(20, 1), fixed(10, 4), "20 images with 1 passes"),
        (certified(), certified(), None),
        (certified(), certified(error=1e-5, limit=128, against=256), None),
        (certified(against=256), certified(), "a limit of 64, compared with 256 passes"),
        (certified(limit=128), certified(), "10 images with an error of 0.0001 and a limit of 128"),
        (certified(error=1e-5), certified(), "an error of 1e-05"),
        (certified(limit=128), certified(error=1e-5), None),
        ({"images": "damaged"}, fixed(10), None),
        ([], fixed(10), None),
    ],
)
def test_an_evaluation_is_larger_if_it_has_more_images_passes_or_rows(stored, new, described, tmp_path):
    (tmp_path / "evaluation.json").write_text(json.dumps(stored))
    found = describe_larger(tmp_path / "evaluation.json", new)
    assert found is None if described is None else described in str(found)


def test_a_missing_or_damaged_file_is_replaced(tmp_path):
    path = tmp_path / "evaluation.json"
    assert describe_larger(path, fixed(1, 1)) is None
    path.write_text("{")
    assert describe_larger(path, fixed(1, 1)) is None
    check_data(path, images_of("/a/test"))


def images_of(data: str, own: bool = False) -> LabeledImages:
    return LabeledImages(torch.zeros(0, 1, 1, 1), torch.zeros(0), (), data, own)


def test_the_evaluation_of_other_data_is_not_replaced(tmp_path):
    path = Path(tmp_path / "evaluation.json")
    path.write_text(json.dumps({"data": "/a/test", "own": False}))
    check_data(path, images_of("/a/test"))
    with pytest.raises(apac.InputError, match="is the evaluation of other data, '/a/test'; replace it with overwrite="):
        check_data(path, images_of("/b/test"))
    path.write_text(json.dumps({"data": "/a/photos", "own": True}))
    check_data(path, images_of("/moved/photos", own=True))


def test_a_stored_evaluation_with_very_long_values_is_described_in_a_short_sentence(tmp_path):
    path = Path(tmp_path / "evaluation.json")
    path.write_text(json.dumps({"data": "x\n" * 100_000}))
    with pytest.raises(apac.InputError, match="is the evaluation of other data") as caught:
        check_data(path, images_of("/b/test"))
    assert len(str(caught.value)) < 1000 and "\n" not in str(caught.value)
    for stored in (fixed(10**4000, 1), fixed(20, *range(10_000)), certified(images=20, error=10**4000)):
        path.write_text(json.dumps(stored))
        described = describe_larger(path, certified() if "rule" in stored else fixed(10, 1))
        assert described is None or len(described) < 1000
