"""Fixtures shared by several test folders."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from torch import Tensor

from apac.randomness import generator

# The same examples every time, however busy the machine.
settings.register_profile("apac", deadline=None, derandomize=True)
settings.load_profile("apac")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Small tensors do not gain from threads, and other work on the machine can stall them."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _torchvision() -> Iterator[None]:
    """A wheel that was built for CUDA lacks two operators of object detection, which no transform uses."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    yield


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """The command ignores Ctrl-C while it ends; run by a test, it must not leave that to the next one."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that trains keeps the memory that it frees; run by a test, it must not change that of the next one."""
    monkeypatch.setattr("apac.inference.memory.keep_all_freed_blocks", lambda: None)


@pytest.fixture
def random() -> torch.Generator:
    return generator(0, "test", 0)


@pytest.fixture(scope="session")
def digits() -> tuple[Tensor, Tensor]:
    """The embedded test images in [0, 1], and their labels."""
    from apac import data

    dataset = data.load("mnist-5k")
    return dataset.test_images.float() / 255, dataset.test_labels
