"""What the examples share: errors over seeds, as a table."""

from __future__ import annotations

from statistics import mean, stdev


def report(title: str, errors: dict[str, list[float]]) -> str:
    """Each rule's errors, one for each seed, with their mean and standard deviation, in percent."""
    lines = [title]
    for rule, each in errors.items():
        spread = f" ± {100 * stdev(each):.2f}" if len(each) > 1 else ""
        listed = " ".join(f"{100 * error:.2f}" for error in each)
        lines.append(f"  {rule:<28} {100 * mean(each):6.2f}{spread} %   (seeds: {listed})")
    return "\n".join(lines)
