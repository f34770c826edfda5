"""What people see: tables, and progress as a bar on a terminal or as plain lines otherwise."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apac.progress import Progress

if TYPE_CHECKING:  # it would bring torch, which takes long
    from apac.classify.decision import Decision
    from apac.paper.table import Table

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def watched() -> Iterator[Progress]:
    """A progress watcher that writes to the standard error stream, so that output stays clean for pipes."""
    if not sys.stderr.isatty():
        yield Lines()
        return
    from rich import progress as bars
    from rich.console import Console
    from rich.text import Text

    class Speed(bars.ProgressColumn):
        def render(self, task: bars.Task) -> Text:
            return Text(f"{task.speed or 0:,.0f}/s")

    columns = [
        bars.TextColumn("{task.description}"),
        bars.BarColumn(bar_width=24),
        bars.TaskProgressColumn(),
        Speed(),
        bars.TimeRemainingColumn(compact=True),
        bars.TextColumn("[dim]{task.fields[note]}"),
    ]
    tasks: dict[str, bars.TaskID] = {}
    with bars.Progress(*columns, console=Console(stderr=True), refresh_per_second=4) as shown:

        def show(task: str, done: int, total: int, note: str = "") -> None:
            if task not in tasks:
                tasks[task] = shown.add_task(task, total=total, note=note)
            shown.update(tasks[task], completed=done, total=total, note=note)

        yield show


class Lines:
    """A line when a task begins, every few seconds, and when it is done."""

    def __init__(self) -> None:
        self.began: dict[str, tuple[float, int]] = {}  # task → when, and at what count it began
        self.ended: set[str] = set()
        self.printed = 0.0

    def __call__(self, task: str, done: int, total: int, note: str = "") -> None:
        now = time.monotonic()
        first = task not in self.began
        if first:
            self.began[task] = (now, done)
        if task in self.ended or not (first or done >= total or now - self.printed >= SECONDS_BETWEEN_LINES):
            return
        if done >= total:
            self.ended.add(task)
        self.printed = now
        since, at_first = self.began[task]
        speed = (done - at_first) / max(now - since, 1e-9)
        left = f", {(total - done) / speed:.0f} s left" if done < total and done > at_first else ""
        share = f"{100 * done // max(total, 1)} %"
        print(f"{task}: {share}{left}{', ' + note if note else ''}", file=sys.stderr, flush=True)


def print_table(table: Table) -> None:
    from rich.console import Console
    from rich.table import Table as Drawn

    drawn = Drawn(title=table.title, title_justify="left")
    for number, name in enumerate(table.columns):
        drawn.add_column(name, justify="right" if any(row[number][:1].isdigit() for row in table.rows) else "left")
    for row in table.rows:
        drawn.add_row(*row)
    Console().print(drawn)


def answers_of(
    images: Sequence[tuple[Path, Sequence[str]]], decision: Decision, classes: Sequence[str]
) -> list[dict[str, Any]]:
    """The decisions of image files, each with the notes of its preparation, as JSON takes them."""
    each = zip(images, decision.labels, decision.log_scores, decision.standard_errors, decision.passes, strict=True)
    return [
        {
            "image": str(path),
            "label": classes[int(label)],
            "mean_log_probability": float(scores[label]),
            "standard_error": float(errors[label]) if math.isfinite(errors[label]) else None,  # JSON has no NaN
            "passes": int(used),
            "log_scores": dict(zip(classes, scores.tolist(), strict=True)),
            "notes": list(notes),
        }
        for (path, notes), label, scores, errors, used in each
    ]


def print_answer(answer: dict[str, Any]) -> None:
    """The decision of one image, and what was done to it first."""
    error = answer["standard_error"]
    spread = "" if error is None else f" ± {error:.4f}"
    print(
        f"{answer['image']}: {answer['label']}  (mean log-probability {answer['mean_log_probability']:.4f}{spread}, "
        f"{answer['passes']:,} passes)"
    )
    if answer["notes"]:
        print(f"  prepared: {', '.join(answer['notes'])}")
