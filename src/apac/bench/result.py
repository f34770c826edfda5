"""All of it: measured, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from apac.bench import deciding, deforming, machine, processes, training
from apac.bench.race import Entry
from apac.errors import InputError
from apac.paper.table import Table
from apac.progress import Progress, silent

PARTS = {
    "deform": deforming.measure,
    "decide": deciding.measure,
    "train": training.measure,
    "process": processes.measure,
}


def bench(parts: Sequence[str] = tuple(PARTS), rounds: int = 5, *, progress: Progress = silent) -> list[Entry]:
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise InputError(f"there is nothing called {unknown[0]!r} to measure; choose among {', '.join(PARTS)}.")
    if rounds < 1:
        raise InputError(f"the number of rounds must be at least 1, got {rounds}.")
    return [entry for part in parts for entry in PARTS[part](rounds, progress)]


def to_json(entries: Sequence[Entry], rounds: int) -> dict[str, Any]:
    return {"machine": machine.describe(), "rounds": rounds, "entries": [entry.to_json() for entry in entries]}


def tables(entries: Sequence[Entry]) -> list[Table]:
    return [_table(group, list(own)) for group, own in groupby(entries, key=lambda entry: entry.group)]


def _table(group: str, entries: list[Entry]) -> Table:
    against = next((f"{entry.against} / this" for entry in entries if entry.against), "")
    return Table(group, ("", "best", "", against), tuple(_row(entry) for entry in entries))


def _row(entry: Entry) -> tuple[str, str, str, str]:
    value = f"{entry.value:,.0f}" if entry.value >= 100 else f"{entry.value:.2f}"
    return entry.name, value, entry.unit, "" if entry.ratio is None else f"{entry.ratio:.2f}"
