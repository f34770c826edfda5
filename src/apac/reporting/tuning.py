"""The candidates of a tuning as a table."""

from __future__ import annotations

from apac.classify.choice import Choice
from apac.reporting.tables import Table, percent


def candidates(choice: Choice) -> Table:
    """Return the error and the calibrated negative log-likelihood of each candidate, and which one is chosen."""
    rows = []
    for candidate in choice.candidates:
        plain = not candidate.strength
        above = f"{candidate.above_best:.4f} ± {candidate.above_best_error:.4f}"
        rows.append(
            (
                f"{candidate.strength:g}",
                ("plain" if plain else candidate.combine) + (" (chosen)" if candidate == choice.chosen else ""),
                percent(candidate.error),
                f"{candidate.nll:.4f}",
                above if candidate.above_best_error else "best",
                f"{candidate.temperatures[-1][1]:.3f}",
            )
        )
    return Table(
        f"{choice.images:,} held-out images, {choice.passes:,} passes, log-likelihood after a temperature T",
        ("strength", "combine", "error", "−log L", "above the best", "T"),
        tuple(rows),
        highlight_last=False,
    )
