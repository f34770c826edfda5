"""The examples in docstrings run, and the public names have one."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest
import torch

import apac

SOURCE = Path(apac.__file__).parent
MODULES = sorted(
    ".".join(("apac", *path.relative_to(SOURCE).with_suffix("").parts))
    for path in SOURCE.rglob("*.py")
    if ">>>" in path.read_text() and path.name != "__init__.py"
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        result = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0


DOCUMENTED = sorted(name for name, home in apac._HOMES.items() if home.startswith(("apac.deform", "apac.adapters")))


@pytest.mark.parametrize("name", sorted(set(DOCUMENTED) - {"presets"}))
def test_a_public_name_has_an_example(name):
    assert ">>>" in (getattr(apac, name).__doc__ or "")
