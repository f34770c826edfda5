"""The examples for clusters, and the simulation of docs/scale.md."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import apac
from script_files import load_script

ROOT = Path(__file__).parent.parent
CLUSTER = ROOT / "examples" / "cluster"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_slurm_script_has_no_syntax_error():
    subprocess.run(["bash", "-n", str(CLUSTER / "decide.slurm")], check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("merged", [0, 2])
def test_the_slurm_script_joins_the_parts_although_a_rank_was_killed(tmp_path, merged):
    log = tmp_path / "log"
    for name, status in (("srun", 137), ("python", merged)):  # srun ends with the highest status of its ranks
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@" >> "{log}"\nexit {status}\n')
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", str(CLUSTER / "decide.slurm"), "r", "f", "o"], env=environment, check=False)
    assert done.returncode == merged
    first, last = log.read_text().splitlines()
    assert first.startswith("srun --kill-on-bad-exit=0 ")
    assert last == "python -m apac merge o --csv o.csv"


def test_the_kubernetes_example_is_yaml_with_the_fields_of_a_pytorchjob():
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((CLUSTER / "decide-pytorchjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    for replica in ("Master", "Worker"):
        spec = job["spec"]["pytorchReplicaSpecs"][replica]
        (container,) = spec["template"]["spec"]["containers"]
        assert container["name"] == "pytorch"  # the name that the operator requires
        assert container["command"][:3] == ["python", "-m", "apac"]
        mounts, volumes = container["volumeMounts"], spec["template"]["spec"]["volumes"]
        assert {mount["name"] for mount in mounts} == {volume["name"] for volume in volumes}


@pytest.mark.parametrize(("name", "mode", "side"), [("mnist-cnn", "L", 28), ("cifar10-cnn", "RGB", 32)])
def test_the_actor_of_the_ray_example_decides_as_the_run_does(monkeypatch, digits, name, mode, side):
    example = load_script(CLUSTER / "ray_data.py", monkeypatch)
    photos = [Image.fromarray((digit[0] * 255).byte().numpy()).convert(mode) for digit in digits[0][:3]]
    # As ray.data.read_images converts them: gray images have no channel.
    arrays = [np.array(photo.resize((side, side))) for photo in photos]
    run = apac.load(name)
    classifier = replace(run.classifier(), rule=apac.FixedPasses(4))
    monkeypatch.setattr(apac.Run, "classifier", lambda self: classifier)
    decided = example.Decide(name)({"image": np.stack(arrays), "path": np.array(["a", "b", "c"])})
    images = torch.stack([torch.from_numpy(array).view(side, side, -1).permute(2, 0, 1) for array in arrays])
    decision = classifier.decide(run.normalize(images))
    assert decided["label"].tolist() == [run.classes[label] for label in decision.labels]
    assert decided["passes"].tolist() == decision.passes.tolist()


def test_the_simulation_agrees_with_formulas_where_there_are_some(monkeypatch):
    simulation = load_script(ROOT / "benchmarks" / "scale_simulation.py", monkeypatch)
    per_image = {"per_pass": 0.001, "decode": 0.01, "passes_mean": 20, "passes_deviation": 0}
    costs = simulation.Costs(**per_image, per_part=0.1, list_file=0, start=1, spread=0, failures=0)
    # 10 parts of 512 images, 0.03 s each.
    part = 512 * 0.03 + 0.1
    assert simulation.predict(costs, 5120, 1).wall == pytest.approx(1 + 10 * part)
    assert simulation.predict(costs, 5120, 4).wall == pytest.approx(1 + 3 * part)
    assert simulation.predict(costs, 10**9, 1000).parts <= 100_000
