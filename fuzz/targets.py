"""What is fuzzed: the targets, and the fuzzers that they belong to.

A fuzzer changes files that are loaded by related code; each of its inputs is for one of its targets, at random.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fuzz import file_targets, run_targets, tensor_targets
from fuzz.target import Target

TARGETS: dict[str, Callable[[Path], Target]] = {
    "image": file_targets.image,
    "run.json": run_targets.run_json,
    "small run.json": run_targets.small_run_json,
    "tuning.json": run_targets.tuning_json,
    "reliability.json": run_targets.reliability_json,
    "evaluation.json": run_targets.evaluation_json,
    "certified.json": run_targets.certified_json,
    "weights": tensor_targets.weights,
    "initial weights": tensor_targets.initial_weights,
    "onnx": file_targets.onnx,
    "deformation": file_targets.deformation,
    "transform": file_targets.transform,
    "job.json": file_targets.job_json,
    "cache.json": file_targets.cache_json,
    "checkpoint": tensor_targets.checkpoint,
    "scores": tensor_targets.scores,
    "certified decision": tensor_targets.certified_decision,
    "names": file_targets.names,
}
FUZZERS = {  # the names of their targets
    "images": ("image",),
    "runs": ("run.json", "small run.json", "tuning.json", "reliability.json", "evaluation.json", "certified.json"),
    "weights": ("weights", "initial weights"),
    "onnx": ("onnx",),
    "deformations": ("deformation", "transform", "job.json", "cache.json"),
    "checkpoints": ("checkpoint", "scores", "certified decision"),
    "names": ("names",),
}


def build(name: str, folder: Path) -> Target:
    """Return a target, which works in a folder of its name."""
    place = folder / name
    place.mkdir()
    return TARGETS[name](place)
