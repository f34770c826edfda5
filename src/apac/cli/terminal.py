"""Output of the commands: tables, decisions and progress (a bar on a terminal, otherwise plain lines)."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from apac.cli.signals import was_interrupted
from apac.progress import Progress

if TYPE_CHECKING:  # imports torch, which is slow
    from apac.reporting.tables import Table

SECONDS_BETWEEN_LINES = 10.0
SHOWN_CLASSES = 3  # whose probabilities are printed


@contextmanager
def show_progress() -> Iterator[Progress]:
    """Provide a progress callback that writes to standard error, so that standard output can be piped."""
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
    # Lines that are printed meanwhile appear above the bars, but stay on standard output if it is piped.
    console, on_terminal = Console(stderr=True), sys.stdout.isatty()
    with bars.Progress(*columns, console=console, refresh_per_second=4, redirect_stdout=on_terminal) as display:

        def show(task: str, done: int, total: int, note: str = "") -> None:
            _stop_if_interrupted()
            if task not in tasks:
                tasks[task] = display.add_task(task, total=total, note=note)
            display.update(tasks[task], completed=done, total=total, note=note)

        yield show


def _stop_if_interrupted() -> None:
    if was_interrupted():  # and a library has ignored it
        raise KeyboardInterrupt


class Lines:
    """Print a line when a task starts, every few seconds, and when it ends."""

    def __init__(self) -> None:
        self.started: dict[str, tuple[float, int]] = {}  # by task: the time and the count at its start
        self.finished: set[str] = set()
        self.last_line = 0.0

    def __call__(self, task: str, done: int, total: int, note: str = "") -> None:
        _stop_if_interrupted()
        now = time.monotonic()
        first = task not in self.started
        if first:
            self.started[task] = (now, done)
        if task in self.finished or not (first or done >= total or now - self.last_line >= SECONDS_BETWEEN_LINES):
            return
        if done >= total:
            self.finished.add(task)
        self.last_line = now
        start, first_count = self.started[task]
        speed = (done - first_count) / max(now - start, 1e-9)
        left = f", {speed:,.3g}/s, {(total - done) / speed:.0f} s left" if done < total and done > first_count else ""
        percent = f"{100 * done // max(total, 1)} %"
        print(f"{task}: {percent}{left}{', ' + note if note else ''}", file=sys.stderr, flush=True)


def print_table(table: Table) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    rich_table = RichTable(title=Text(table.title), title_justify="left")  # brackets in names are no markup
    for number, name in enumerate(table.columns):
        rich_table.add_column(
            Text(name), justify="right" if any(row[number][:1].isdigit() for row in table.rows) else "left"
        )
    for row in table.rows:
        rich_table.add_row(*map(Text, row))
    Console().print(rich_table)


def print_record(record: dict[str, Any]) -> None:
    """Print the decision of one image, how often such answers were right, and how the image was converted."""
    name = record["image"].encode(errors="surrogateescape").decode(errors="replace")  # a file name may not be UTF-8
    print(f"{name}: {_sentence(record)}")
    if record["bin_images"]:
        accuracy, images = record["bin_accuracy"], record["bin_images"]
        low, high = record["bin_probability"]
        print(f"  of {images:,} test images with a probability of {low:g} to {high:g}, {_percent(accuracy)} were right")
    if record["notes"]:
        print(f"  converted: {', '.join(record['notes'])}")


def _sentence(record: dict[str, Any]) -> str:
    passes = f"{record['passes']:,} pass{'' if record['passes'] == 1 else 'es'}"
    if record["stopped"] == "nan":
        return f"not decided: after {passes} the network returned NaN or an infinite logit"
    stopped = {
        "fixed": "plain prediction" if record["plain"] else f"after {passes}",
        "certified": f"settled after {passes}",
        "limit": f"not settled after {passes}",
    }[record["stopped"]]
    if record["clipped"]:
        stopped += f", with the clip active in {record['clipped']:,}"
    ranked = sorted(record["probabilities"].items(), key=lambda pair: pair[1], reverse=True)
    behind = [pair for pair in ranked if pair[0] != record["label"]][: SHOWN_CLASSES - 1]
    others = ", ".join(f"{name} {_decimal(probability)}" for name, probability in behind)
    if record["margin"] == 0:
        others = f"tied with {record['runner_up']}"
    return f"{record['label']}, probability {_decimal(record['probability'])} ({stopped}; {others})"


def _decimal(probability: float) -> str:
    """Return a probability that is never rounded to 0 or 1."""
    if 0.01 <= probability <= 0.99:
        return f"{probability:.2f}"
    if probability < 5e-5:
        return "< 0.0001"
    return f"{probability:.4f}" if probability < 1 - 5e-5 else "> 0.9999"


def _percent(share: float) -> str:
    """Return a share in percent, 100 only if it is all."""
    return f"{100 * share:.0f} %" if share == 1 or share < 0.985 else f"{min(99.9, 100 * share):.1f} %"
