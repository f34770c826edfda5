"""A table of errors over seeds, for the examples."""

from __future__ import annotations

from statistics import mean, stdev


def report(title: str, errors: dict[str, list[float]]) -> str:
    """Format the mean, standard deviation and list of the errors of each rule, in percent."""
    lines = [title]
    for rule, by_seed in errors.items():
        spread = f" ± {100 * stdev(by_seed):.2f}" if len(by_seed) > 1 else ""
        listed = " ".join(f"{100 * error:.2f}" for error in by_seed)
        lines.append(f"  {rule:<28} {100 * mean(by_seed):6.2f}{spread} %   (seeds: {listed})")
    return "\n".join(lines)
