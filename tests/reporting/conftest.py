"""Figures in low resolution."""

import pytest


@pytest.fixture(autouse=True)
def low_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of the time of these tests."""
    monkeypatch.setattr("apac.reporting.figures.canvas.DPI", 40)
