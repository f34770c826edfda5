"""The worst files are refused in one sentence, and within 5 s and 600 MB."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.refusals import Case, Cost, cases, write

from commands import call

ROOT = Path(__file__).parent.parent.parent
QUICK = ("frames.avif", "frames.gif", "frames.png", "frames.webp", "lines.bmp", "tags.jpg", "texts.png", "tags.tif")


@pytest.fixture(scope="module")
def refused() -> dict[str, Case]:
    pytest.importorskip("onnx")
    return {case.name: case for case in cases() if case.refused}


def test_files_that_are_made_fast_are_refused_in_one_sentence(refused, tmp_path, monkeypatch):
    from fuzz import hostile_files  # which needs onnx

    kinds = [f"deformation: {name}" for name in hostile_files.DEFORMATIONS]
    kinds += [f"job.json: {name}" for name in hostile_files.JOBS]
    quick = [refused[name] for name in (*QUICK, *kinds)]
    for number, case in enumerate(quick):
        place = tmp_path / str(number)
        place.mkdir()
        monkeypatch.chdir(place)
        write(case, place)
        result = call(*case.arguments)
        assert Cost(result.exit_code, 0, 0, result.stderr).problems(case) == []


def test_what_costs_too_much_or_is_not_one_sentence_is_a_problem():
    case = Case("a file", ("classify", "run", "file"))
    assert Cost(2, 4.9, 599, "apac: no.\n").problems(case) == []
    for cost in (Cost(2, 5.1, 99, "apac: no.\n"), Cost(2, 1, 601, "apac: no.\n"), Cost(0, 1, 1, "")):
        assert len(cost.problems(case)) == 1
    assert Cost(1, 9, 900, "Traceback\n...").problems(case) != []
    assert Cost(0, 9, 900, "").problems(Case("a file", (), refused=False)) == []


@pytest.mark.slow
def test_every_file_is_refused_within_5_seconds_and_600_mb():
    result = subprocess.run([sys.executable, "-m", "fuzz.refusals"], cwd=ROOT, text=True, capture_output=True)
    assert result.returncode == 0, result.stdout + result.stderr
