"""The Python in the README and the docs runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def test_the_links_in_the_readme_and_docs_lead_somewhere():
    for page in [README, *README.parent.glob("docs/*.md"), README.parent / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", [README, README.parent / "docs" / "certified.md"], ids=lambda page: page.name)
def test_the_python_on_a_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
