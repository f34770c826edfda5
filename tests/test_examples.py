"""The Python code in the README, the docs and the examples runs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from PIL import Image

README = Path(__file__).parent.parent / "README.md"


def test_the_links_in_the_readme_and_docs_resolve():
    for page in [README, *README.parent.glob("docs/**/*.md"), README.parent / "CHANGELOG.md"]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("https://") or (page.parent / target).exists(), target


def test_code_blocks_are_python_shell_or_text():
    for page in [README, *README.parent.glob("docs/**/*.md")]:
        assert set(re.findall(r"^```(\w+)$", page.read_text(), re.MULTILINE)) <= {"python", "sh", "text"}, page.name


PAGES = [README, *(page for page in sorted(README.parent.glob("docs/**/*.md")) if "```python" in page.read_text())]


@pytest.mark.filterwarnings("ignore:You are using the legacy TorchScript-based ONNX export")
@pytest.mark.filterwarnings("ignore:The feature will be removed")  # within that export
# DataLoader workers: Python 3.12 warns of a fork in a process with threads, torch of more workers than cores.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_on_a_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(["apple", "pear"] * 4):  # the folder that some pages use
        (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (20 * number, 90, 200)).save(tmp_path / "photos" / name / f"{number}.png")
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)


# Arguments for a quick run: seeds, epochs and the limit of passes, or images, epochs and passes.
EXAMPLES = {
    "digits": (1, 3, 16),
    "own_classes": (1, 3, 16),
    "own_pipeline": (6, 1, 17),
    "time_series": (1, 2, 16),
    "tuned": (1, 1, 16),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_and_prints_errors(name, monkeypatch, capsys):
    folder = README.parent / "examples"
    monkeypatch.syspath_prepend(str(folder))
    module = runpy.run_path(str(folder / f"{name}.py"))
    errors = module["main"](*EXAMPLES[name])
    fractions = [error for by_seed in errors.values() for error in by_seed] if isinstance(errors, dict) else errors
    assert all(0 <= fraction <= 1 for fraction in fractions)
    assert "%" in capsys.readouterr().out


def test_every_example_is_run():
    assert {path.stem for path in (README.parent / "examples").glob("*.py")} - {"seeds"} == set(EXAMPLES)
