"""The JSON files in the folder of a run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import apac
from apac.data.normalize import Standardization
from apac.evaluation.reliability import FILE, find_reliability
from apac.evaluation.stored import check_data, describe_larger
from apac.runs.folder import PRETRAINED
from apac.runs.labeled_images import LabeledImages
from apac.runs.run import save
from fuzz.mutate import mutate_json
from fuzz.target import IMAGES, SHAPE, Target, in_file, network

EVALUATION = {"images": 10, "data": "/data", "own": False, "strength": 1.0, "combine": "product"}


def small_run(folder: Path) -> Path:
    """Store a run of a network with a single layer."""
    run = replace(
        apac.load("mnist-cnn"),
        network_name=None,
        network=network(),
        normalization=Standardization(torch.tensor([0.5]), torch.tensor([0.25])),
        classes=("a", "b", "c"),
        image_shape=SHAPE,
        deformation=apac.presets.mnist(),
        choice=None,
    )
    save(run, folder, "digest")
    return _without_history(folder)


def run_json(folder: Path) -> Target:
    run = _shipped(folder)
    return in_file(run / "run.json", mutate_json, lambda: apac.load(run))


def small_run_json(folder: Path) -> Target:
    run = small_run(folder)
    return in_file(run / "run.json", mutate_json, lambda: apac.load(run, network()))


def tuning_json(folder: Path) -> Target:
    folder = _shipped(folder)

    def decide() -> None:
        run = apac.load(folder)
        decision = run.classifier(apac.FixedPasses(1)).decide(torch.zeros(1, *run.image_shape))
        assert bool(decision.probabilities.isfinite().all())

    return in_file(folder / "tuning.json", mutate_json, decide)


def reliability_json(folder: Path) -> Target:
    run = apac.load("mnist-cnn")
    classifiers = [run.classifier(rule, paper_rule=rule is not None) for rule in (None, apac.FixedPasses(64))]
    path = folder / FILE
    path.write_bytes((PRETRAINED / "mnist-cnn" / FILE).read_bytes())

    def load() -> None:
        for classifier in classifiers:
            for plain in (False, True):
                found = find_reliability([folder], classifier, plain=plain)
                for probability in (0.0, 0.5, 0.97, 1.0) if found else ():
                    assert found is not None
                    assert 0 <= found.bin_of(probability).accuracy <= 1

    assert find_reliability([folder], classifiers[0]) is not None
    return in_file(path, mutate_json, load)


def evaluation_json(folder: Path) -> Target:
    payload = EVALUATION | {"rows": [{"passes": 1}, {"passes": 4}]}
    return _evaluation(folder / "evaluation.json", payload, payload | {"rows": [{"passes": 1}]})


def certified_json(folder: Path) -> Target:
    payload = EVALUATION | {"rule": {"error": 1e-4, "limit": 64}}
    return _evaluation(folder / "certified.json", payload | {"against": {"passes": 16}}, payload)


def _evaluation(path: Path, stored: Mapping[str, Any], new: Mapping[str, Any]) -> Target:
    """Return the target that compares a stored evaluation with a new one, which is smaller."""
    path.write_text(json.dumps(stored))
    tested = LabeledImages(IMAGES, torch.zeros(len(IMAGES), dtype=torch.int64), (), "/data", own=False)

    def load() -> None:
        larger = describe_larger(path, new)
        assert larger is None or (len(larger) < 1000 and "\n" not in larger), larger
        check_data(path, tested)

    assert describe_larger(path, new) is not None
    return in_file(path, mutate_json, load)


def _shipped(folder: Path) -> Path:
    return _without_history(Path(shutil.copytree(PRETRAINED / "mnist-cnn", folder, dirs_exist_ok=True)))


def _without_history(folder: Path) -> Path:
    """Remove most of the history of a run, so that changes hit the other values and loading is fast."""
    payload = json.loads((folder / "run.json").read_bytes())
    (folder / "run.json").write_text(json.dumps(payload | {"history": payload["history"][:2]}))
    return folder
