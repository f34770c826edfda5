"""What people see: tables, and progress as a bar on a terminal or as plain lines otherwise."""

from __future__ import annotations

import csv
import io
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
    from apac.reporting.tables import Table

SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def show_progress() -> Iterator[Progress]:
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
    return [
        {
            "image": str(path),
            "label": _name(classes, decision.labels[i]),
            "runner_up": _name(classes, decision.runners_up[i]),
            "stopped": decision.stopped[i],
            "passes": int(decision.passes[i]),
            "clipped": int(decision.clipped[i]),
            "margin": _number(decision.margins[i]),
            "margin_error": _number(decision.margin_errors[i]),
            "mean_log_probability": _number(decision.log_scores[i].max()),
            "standard_error": _number(decision.standard_errors[i, decision.log_scores[i].argmax()]),
            "log_scores": dict(zip(classes, map(_number, decision.log_scores[i]), strict=True)),
            "notes": list(notes),
        }
        for i, (path, notes) in enumerate(images)
    ]


def answers_as_csv(answers: Sequence[dict[str, Any]]) -> str:
    """One line for each image."""
    columns = ("image", "label", "runner_up", "margin", "margin_error", "passes", "stopped")
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows(["" if answer[name] is None else answer[name] for name in columns] for answer in answers)
    return text.getvalue()


def _name(classes: Sequence[str], number: Any) -> str | None:
    return classes[number] if number >= 0 else None


def _number(value: Any) -> float | None:
    """JSON has neither NaN nor infinity."""
    return float(value) if math.isfinite(value) else None


def print_answer(answer: dict[str, Any]) -> None:
    """The decision of one image, and what was done to it first."""
    name = answer["image"].encode(errors="surrogateescape").decode(errors="replace")  # a name need not be UTF-8
    print(f"{name}: {_sentence(answer)}")
    if answer["notes"]:
        print(f"  prepared: {', '.join(answer['notes'])}")


def _sentence(answer: dict[str, Any]) -> str:
    passes = f"{answer['passes']:,} pass{'' if answer['passes'] == 1 else 'es'}"
    if answer["stopped"] == "nan":
        return f"not decided: after {passes} the network returned NaN or an infinite logit"
    ways = {
        "fixed": f"after {passes}",
        "certified": f"certain after {passes}",
        "limit": f"not certain after {passes}",
    }
    way = ways[answer["stopped"]]
    if answer["clipped"]:
        way += f", with the clip active in {answer['clipped']:,}"
    if answer["margin"] == 0:
        lead = f"tied with {answer['runner_up']}"
    elif answer["margin"] is None:
        lead = "the only class"
    else:
        error = answer["margin_error"]
        lead = f"ahead of {answer['runner_up']} by {answer['margin']:.3f}{'' if error is None else f' ± {error:.3f}'}"
    return f"{answer['label']}  ({way}; {lead})"
