"""Self-contained HTML pages, which can be opened from disk."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from apac.reporting.tables import Table

STYLE = """
:root { color-scheme: light dark; --ink: #1d232b; --soft: #5c6773; --line: #d9dee4; --ground: #fff; --best: #1f5fa8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ec; --soft: #9aa5b1; --line: #38414b; --ground: #15191e; --best: #7ab0ec; }
}
body { max-width: 54rem; margin: 3rem auto; padding: 0 1.2rem; background: var(--ground); color: var(--ink);
       font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.6rem; }
figcaption { color: var(--soft); font-size: .9rem; }
table { border-collapse: collapse; margin: 1rem 0; } caption { text-align: left; color: var(--soft); font-size: .9rem; }
th, td { padding: .35rem 1.1rem .35rem 0; text-align: left; border-bottom: 1px solid var(--line);
         font-variant-numeric: tabular-nums; }
th { font-weight: 600; } .last tbody tr:last-child td { color: var(--best); font-weight: 600; }
figure { margin: 1.2rem 0; } figure img { max-width: 100%; background: #ffffff; border-radius: 4px; }
code { font-size: .85rem; overflow-wrap: anywhere; white-space: pre-wrap; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; font-size: .9rem; } dd { margin: 0; }
"""


@dataclass(frozen=True)
class Section:
    """A heading and its content; empty parts are omitted, the heading too."""

    title: str
    text: str = ""
    table: Table | None = None
    picture: bytes = b""  # PNG
    caption: str = ""
    facts: Mapping[str, str] | None = None
    links: Mapping[str, str] | None = None  # text by address


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Return a complete page: title, lead paragraph and sections."""
    body = "\n".join(_section(section) for section in sections)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n<p>{escape(lead)}</p>\n{body}\n</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>"] if section.title else []
    if section.text:
        parts.append(f"<p>{escape(section.text)}</p>")
    if section.table:
        parts.append(_table(section.table))
    if section.picture:
        data = base64.b64encode(section.picture).decode()
        parts.append(
            f'<figure><img alt="{escape(section.title or section.caption)}" src="data:image/png;base64,{data}">'
            f"<figcaption>{escape(section.caption)}</figcaption></figure>"
        )
    if section.facts:
        rows = "".join(f"<dt>{escape(k)}</dt><dd><code>{escape(v)}</code></dd>" for k, v in section.facts.items())
        parts.append(f"<dl>{rows}</dl>")
    if section.links:
        links = section.links.items()
        items = "".join(f'<li><a href="{escape(address)}">{escape(text)}</a></li>' for address, text in links)
        parts.append(f"<ul>{items}</ul>")
    return "\n".join(parts)


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    style = ' class="last"' if table.highlight_last else ""
    return (
        f"<table{style}><caption>{escape(table.title)}</caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{rows}\n</tbody></table>"
    )
