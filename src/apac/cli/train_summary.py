"""What apac train prints before the first step."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imports torch, which is slow
    from apac.data.folder import FolderSummary
    from apac.runs.summary import ClassCounts, TrainingSummary

WIDTH = 80  # columns
INDENT = 15  # columns before the text of an item
MAX_CLASSES = 12  # rows of the table of classes
MAX_NAMED = 3  # files listed as examples


def print_summary(summary: TrainingSummary) -> None:
    for line in summary_lines(summary):
        print(line.encode(errors="surrogateescape").decode(errors="replace"))  # a file name may not be UTF-8
    print(flush=True)


def summary_lines(summary: TrainingSummary) -> list[str]:
    """Return the summary as lines of at most 80 columns, unless a word is longer."""
    from apac.runs.presets import describe

    settings, folder = summary.settings, summary.folder
    data = settings.data or "data in memory"
    images = sum(counts.train + counts.held_out + counts.test for counts in summary.classes)
    lines = _item("data", f"{data}: {images:,} images of {len(summary.classes)} classes")
    if folder is not None:
        lines += _folder_lines(Path(data), folder)
    lines += _item("split", _split(summary))
    lines += [" " * INDENT + row for row in _class_rows(summary.classes)]
    lines += _item("images", _images(summary))
    lines += _item("normalization", summary.normalization)
    lines += _item("deformation", describe(settings.deformation))
    return lines + _item("network", _network(summary))


def _network(summary: TrainingSummary) -> str:
    text = f"{summary.network}, {summary.parameters:,} parameters"
    if summary.trained_parameters < summary.parameters:
        text += f", of which {summary.trained_parameters:,} are trained"
    config = summary.settings.config
    if config.weights is not None:
        return f"{text}, initial weights from {config.weights}"
    if config.freeze:
        text += "; the others stay random, because there are no initial weights (--weights)"
    return text


def _item(name: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=name.ljust(INDENT),
        subsequent_indent=" " * INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _folder_lines(root: Path, folder: FolderSummary) -> list[str]:
    from apac.data.folder_files import OTHER_FORMATS

    lines = []
    for number, (reason, paths) in enumerate(folder.skipped.items()):
        remedy = "; convert to JPEG or PNG" if reason in OTHER_FORMATS.values() else ""
        lines += _item("" if number else "skipped", f"{len(paths):,} {reason} ({_names(root, paths)}){remedy}")
    for path, count in folder.files.unused.items():
        lines += _item("unused", f"the folder {path.name}, {count:,} images")
    for pairs, one, more in (
        (folder.repeated, "test image is also a training image", "test images are also training images"),
        (folder.contradictory, "image is also in another class", "images are also in another class"),
    ):
        if pairs:
            example = " = ".join(_relative(root, path) for path in pairs[0])
            lines += _item("warning", f"{len(pairs):,} {one if len(pairs) == 1 else more} ({example})")
    return lines


def _names(root: Path, paths: Sequence[Path]) -> str:
    names = ", ".join(_relative(root, path) for path in paths[:MAX_NAMED])
    return names + (", ..." if len(paths) > MAX_NAMED else "")


def _relative(root: Path, path: Path) -> str:
    return os.fspath(path.relative_to(root))


def _split(summary: TrainingSummary) -> str:
    counts = {name: sum(getattr(row, name) for row in summary.classes) for name in ("train", "held_out", "test")}
    text = f"{counts['train']:,} to train on, {counts['held_out']:,} held out for the validation error"
    if counts["test"]:
        text += f", {counts['test']:,} to test on"
        if summary.folder is not None:
            test_folder = summary.folder.files.test_folder
            text += " (about a fifth, by file name)" if test_folder is None else f" (the folder {test_folder.name})"
    return text


def _class_rows(classes: Sequence[ClassCounts]) -> list[str]:
    """Return a table of the classes; of many classes, the first ones and the sum of the others."""
    shown = list(classes) if len(classes) <= MAX_CLASSES else list(classes[: MAX_CLASSES - 2])
    rows = [(row.name, row.train, row.held_out, row.test) for row in shown]
    if others := classes[len(shown) :]:
        sums = (sum(getattr(row, name) for row in others) for name in ("train", "held_out", "test"))
        rows.append((f"{len(others):,} others", *sums))
    heading = ("class", "train", "held out", "test")
    cells = [
        heading,
        *((textwrap.shorten(name, 28, placeholder="..."), *map("{:,}".format, row)) for name, *row in rows),
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in cells
    ]


def _images(summary: TrainingSummary) -> str:
    from apac.models import fixed_size

    channels, height, width = summary.image_shape
    text = f"{channels} x {height} x {width} pixels"
    if summary.folder is None:
        return text
    config = summary.settings.config
    fitted = "cropped to the center" if config.fit == "crop" else "padded by repeating the edge"
    side = f"the shorter sides of the files have a median of {summary.folder.shorter_side}"
    if config.size is not None:
        return f"{text}, {fitted} ({side})"
    if fixed_size(summary.settings.network) is not None:
        return f"{text}, the size that {summary.network} takes, {fitted} ({side})"
    return f"{text}, chosen from the files ({side}), {fitted}"
