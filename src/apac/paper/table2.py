"""The paper's whole table, of the recipes that make its rows, with the two figures that show several networks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from apac.errors import InputError
from apac.paper.reproduce import Result
from apac.reporting import html, tables
from apac.reporting.figures import curves
from apac.runs.storage import write_bytes, write_text

NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}


def check_free(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that the table may not use; changes nothing. Those of its recipes are for `reproduce.plan`."""
    if (out / "runs").exists():
        raise InputError(f"{out} holds the report of one recipe; choose another folder for the whole tables.")
    if not (resume or overwrite) and (out / "report.html").exists():
        raise InputError(
            f"{out} already holds a report; go on with it by --resume, replace it by --overwrite, or choose another "
            f"folder."
        )


def write(results: Sequence[Result], out: Path) -> None:
    """Write `out`/report.html, which leads to those of the recipes, and a figure for each data set."""
    sections = [html.Section("Table 2", table=errors(results))]
    for data, title in NAMES.items():
        rows = {r.recipe.deformed.model.upper(): r.evaluation for r in results if r.recipe.deformed.data == data}
        if rows:
            picture = curves.networks_against_m(rows)
            write_bytes(out / f"{data}-error-against-m.png", picture)
            caption = "The same weights throughout; the plain prediction is one pass of the undeformed image."
            sections.append(html.Section(f"Error against M on {title}", picture=picture, caption=caption))
    links = {f"{r.recipe.name}/report.html": f"{r.recipe.name}, with its figures" for r in results}
    sections.append(html.Section("Each network", links=links))
    lead = "The paper's networks, each trained on deformed and on original data, decided plain and by APAC."
    write_text(out / "report.html", html.page("APAC: the paper's table", lead, sections))


def errors(results: Sequence[Result]) -> tables.Table:
    """The paper's Table 2, each error with the paper's behind it."""
    rows = []
    for result in results:
        largest, paper = result.evaluation.rows[-1], result.recipe.paper
        rows.append(
            (
                result.recipe.name,
                _beside(largest.product, paper["deformed"].apac),
                _beside(result.evaluation.plain, paper["deformed"].plain),
                _beside(result.other.plain, paper["original"].plain),
                f"{largest.passes:,}",
            )
        )
    columns = ("network", "deformed data, APAC", "deformed data, plain", "original data, plain", "M")
    return tables.Table(
        "Test error in percent, and in brackets the paper's with M = 16,384", columns, tuple(rows), highlight_last=False
    )


def _beside(here: float, there: float | None) -> str:
    assert there is not None
    return f"{100 * here:.2f} ({there:.2f})"
