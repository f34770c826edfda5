"""Run the benchmarks and present the results as tables and as JSON."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from apac.bench import deciding, deforming, pipelines, processes, ranks, serving, training
from apac.bench.race import Entry
from apac.errors import InputError
from apac.progress import Progress, no_progress
from apac.reporting.tables import Table
from apac.runs import provenance

PEERS = ("kornia", "albumentations", "torchvision", "scipy", "ttach")
PARTS = {
    "deform": deforming.measure,
    "decide": deciding.measure,
    "pipelines": pipelines.measure,
    "train": training.measure,
    "ranks": ranks.measure,
    "process": processes.measure,
    "serve": serving.measure,
}


def bench(parts: Sequence[str] = tuple(PARTS), rounds: int = 5, *, progress: Progress = no_progress) -> list[Entry]:
    """Run the named benchmarks; the best of `rounds` measurements counts."""
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise InputError(f"there is no benchmark {unknown[0]!r}; choose among {', '.join(PARTS)}.")
    if rounds < 1:
        raise InputError(f"rounds must be at least 1, got {rounds}.")
    return [entry for part in parts for entry in PARTS[part](rounds, progress)]


def to_json(entries: Sequence[Entry], rounds: int) -> dict[str, Any]:
    machine = provenance.describe(PEERS) | {"commit": _commit()}
    return {"machine": machine, "rounds": rounds, "entries": [entry.to_json() for entry in entries]}


def tables(entries: Sequence[Entry]) -> list[Table]:
    return [_table(group, list(members)) for group, members in groupby(entries, key=lambda entry: entry.group)]


def _table(group: str, entries: list[Entry]) -> Table:
    against = next((f"{entry.against} / this" for entry in entries if entry.against), "")
    return Table(group, ("", "best", "", against), tuple(_row(entry) for entry in entries))


def _row(entry: Entry) -> tuple[str, str, str, str]:
    value = f"{entry.value:,.0f}" if entry.value >= 100 else f"{entry.value:.2f}"
    return entry.name, value, entry.unit, "" if entry.ratio is None else f"{entry.ratio:.2f}"


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
