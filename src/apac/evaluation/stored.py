"""Stored evaluations: an evaluation does not replace a larger one, or one of other data, unless asked to."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from apac.errors import InputError, StorageError
from apac.runs.labeled_images import LabeledImages
from apac.runs.storage import read_json
from apac.validation import quoted, shortened


def check_data(path: Path, tested: LabeledImages) -> None:
    """Raise InputError if the stored evaluation is one of other data."""
    stored = _read(path)
    both_own = stored.get("own") and tested.own  # the folder may have been moved
    if not both_own and stored.get("data", tested.data) != tested.data:
        raise InputError(
            f"{path} is the evaluation of other data, {quoted(stored['data'])}; replace it with overwrite=True, or "
            f"pass another folder as out=."
        )


def describe_larger(path: Path, payload: Mapping[str, Any]) -> str | None:
    """Describe the stored evaluation if it is larger than a new one; return None if it is not.

    More images are larger, and of the same images more passes. An evaluation from before the run was tuned, or tuned
    again, is not kept.
    """
    stored = _read(path)
    if any(name in stored and stored[name] != payload.get(name) for name in ("strength", "combine")):
        return None
    with suppress(KeyError, TypeError, ValueError, ArithmeticError):  # damaged, and therefore replaced
        if _size(stored) > _size(payload):
            return shortened(_describe(stored))
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        stored = read_json(path, "") if path.exists() else {}
    except StorageError:  # damaged, and therefore replaced
        return {}
    return stored if isinstance(stored, dict) else {}


def _size(payload: Mapping[str, Any]) -> tuple[float, ...]:
    """Return what makes an evaluation larger, the most important first."""
    if "rows" in payload:
        return payload["images"], _max_passes(payload), len(payload["rows"])
    rule = payload["rule"]
    return payload["images"], 1 / rule["error"], rule["limit"], (payload.get("against") or {"passes": 0})["passes"]


def _max_passes(payload: Mapping[str, Any]) -> int:
    return max((row["passes"] for row in payload["rows"]), default=0)


def _describe(payload: Mapping[str, Any]) -> str:
    images = f"{payload['images']:,} images"
    if "rows" in payload:
        numbers = ", ".join(f"{row['passes']:,}" for row in payload["rows"])
        return f"{images} with {numbers} passes"
    rule, against = payload["rule"], payload.get("against")
    compared = f", compared with {against['passes']:,} passes" if against else ""
    return f"{images} with an error of {rule['error']:g} and a limit of {rule['limit']:,}{compared}"
