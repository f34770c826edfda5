"""What was measured on: hardware, versions, commit; and the hardware's limit, a large matrix product."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = [
    *("augmented-pattern-classification", "torch", "numpy", "numba", "onnxruntime", "openvino"),
    *("kornia", "albumentations", "scipy", "ttach"),
]
SIZE = 2048


def describe() -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "torch threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def matrix_product() -> Callable[[], float]:
    """A contestant: operations of a product of large matrices in float32, torch's own, on all cores."""
    left, right = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)

    def work() -> float:
        for _ in range(4):
            left @ right
        return 4 * 2 * SIZE**3

    return work


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
