"""The machine and the package versions that a result was computed with."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

SOURCE = Path(__file__).parent.parent
# the packages that compute passes
PACKAGES = ("augmented-pattern-classification", "torch", "numpy", "numba", "onnxruntime", "openvino")


def describe(packages: Sequence[str] = ()) -> dict[str, Any]:
    """Describe this machine, with the versions of the packages that compute passes and of further ones."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "torch threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: installed_version(name) for name in (*PACKAGES, *packages)},
    }


def code_version() -> str:
    """Return the version of the package with a hash of its source, which tells editable installations apart."""
    digest = hashlib.blake2b(digest_size=4)
    for path in sorted(SOURCE.rglob("*.py")):
        digest.update(path.read_bytes())
    return f"{installed_version(PACKAGES[0])} ({digest.hexdigest()})"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def installed_version(package: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
