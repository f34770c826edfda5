"""The paper's Table 2 from the results of its recipes, with one figure per data set."""

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
    """Raise InputError if the folder cannot be used. `reproduce.plan` checks the folders of the recipes."""
    if (out / "runs").exists():
        raise InputError(f"{out} holds the report of one recipe; choose another folder for the table.")
    if not (resume or overwrite) and (out / "report.html").exists():
        raise InputError(
            f"{out} already holds a report; continue it with resume=True, replace it with overwrite=True, or choose "
            f"another folder."
        )


def write(results: Sequence[Result], out: Path) -> None:
    """Write `out`/report.html, which links to the reports of the recipes, and a figure for each data set."""
    sections = [html.Section("Table 2", table=errors(results))]
    for data, title in NAMES.items():
        networks = {_kind(r.recipe.network): r.evaluation for r in results if r.recipe.data == data}
        if networks:
            picture = curves.networks_against_m(networks)
            write_bytes(out / f"{data}-error-against-m.png", picture)
            caption = "The weights are the same for all M. The plain prediction is one pass of the undeformed image."
            sections.append(html.Section(f"Error against M on {title}", picture=picture, caption=caption))
    links = {f"{r.recipe.name}/report.html": f"{r.recipe.name}, with its figures" for r in results}
    sections.append(html.Section("Each network", links=links))
    lead = "The paper's networks, trained on deformed and on original data, with plain and APAC decisions."
    write_text(out / "report.html", html.page("APAC: the paper's table", lead, sections))


def errors(results: Sequence[Result]) -> tables.Table:
    """Return the paper's Table 2; each error is followed by the paper's."""
    rows = []
    for result in results:
        largest, paper = result.evaluation.rows[-1], result.recipe.paper
        rows.append(
            (
                result.recipe.name,
                _with_paper(largest.product, paper["deformed"].apac),
                _with_paper(result.evaluation.plain, paper["deformed"].plain),
                _with_paper(result.baseline.plain, paper["original"].plain),
                f"{largest.passes:,}",
            )
        )
    columns = ("network", "deformed data, APAC", "deformed data, plain", "original data, plain", "M")
    return tables.Table(
        "Test error in percent (in parentheses: the paper, M = 16,384)",
        columns,
        tuple(rows),
        highlight_last=False,
    )


def _with_paper(error: float, paper: float | None) -> str:
    assert paper is not None
    return f"{100 * error:.2f} ({paper:.2f})"


def _kind(network: str) -> str:
    """Return CNN or MLP."""
    return network.partition("-")[2].upper()
