"""HTML pages."""

from __future__ import annotations

from apac.reporting import html, tables


def test_every_cell_of_a_table_is_on_the_page_and_text_is_escaped():
    page = html.page("a < b", "lead & more", [html.Section("s", table=tables.Table("t", ("<b>",), (("x & y",),)))])
    assert "a &lt; b" in page
    assert "<th>&lt;b&gt;</th>" in page
    assert "<td>x &amp; y</td>" in page
    assert "lead &amp; more" in page
