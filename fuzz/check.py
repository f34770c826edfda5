"""Whether an input is read, or refused as promised."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import apac

if TYPE_CHECKING:
    from fuzz.target import Target

FOUND = Path(__file__).parent / "found"  # every input that failed once, as TARGET-DIGEST
LONGEST = 2_000  # characters of a message


def failure(target: Target, data: bytes) -> str | None:
    """Return what is wrong with how an input is treated, None if nothing is."""
    try:
        target.load(data)
    except apac.ApacError as error:
        message = str(error)
        if "\n" in message or len(message) > LONGEST:
            return f"a message of {len(message)} characters: {message[:200]!r}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None
