"""Whether an input is read, or refused as promised, in bounded time and memory."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import apac

if TYPE_CHECKING:
    from fuzz.target import Target

FOUND = Path(__file__).parent / "found"  # every input that failed once, as TARGET-DIGEST
LONGEST = 2_000  # characters of a message
MEMORY = 600  # MB that an input may take
SECONDS = 5.0  # that an input may take
SLOW = 0.5  # seconds after which an input is measured again
PEAK, RESET = Path("/proc/self/clear_refs"), "5"  # of Linux


class Measured(NamedTuple):
    """How an input was treated."""

    failure: str | None  # what is wrong, None if nothing is
    seconds: float  # of the processor
    megabytes: int


def measured(target: Target, data: bytes) -> Measured:
    """Load an input; that it takes too much time or memory is wrong, too."""
    PEAK.write_text(RESET)
    before, begin = _peak(), time.process_time()
    reason = failure(target, data)
    seconds = time.process_time() - begin
    if seconds > SLOW:  # a kernel that is compiled for it, once in an installation, is not its fault
        begin = time.process_time()
        failure(target, data)
        seconds = min(seconds, time.process_time() - begin)
    megabytes = _peak() - before
    if reason is None and seconds > SECONDS:
        reason = f"it took {seconds:.1f} s"
    if reason is None and megabytes > MEMORY:
        reason = f"it took {megabytes} MB"
    return Measured(reason, seconds, megabytes)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


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
