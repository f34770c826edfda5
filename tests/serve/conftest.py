"""A server of the shipped MNIST network in this process, and images for it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from PIL import Image

from apac import data
from apac.inference import engine
from served import Running, mnist, running


@pytest.fixture
def unprepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of this test run their networks as they are: exporting them takes longer than the tests."""
    monkeypatch.setattr(engine, "MIN_OPERATIONS", float("inf"))


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "MIN_OPERATIONS", float("inf"))  # exporting takes longer than these tests
            server = stack.enter_context(running(mnist()))
        yield server


@pytest.fixture(scope="session")
def pixels() -> Any:
    """Test images, (N, 1, 28, 28) uint8."""
    return data.load("mnist-5k").test_images


@pytest.fixture(scope="session")
def seven() -> bytes:
    """A digit as a person would send it: large, dark on white."""
    dataset = data.load("mnist-5k")
    index = int((dataset.test_labels == 7).nonzero()[0])
    picture = Image.fromarray(255 - dataset.test_images[index, 0].numpy()).resize((200, 200))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()
