"""Deciding batches of an iterable, one after the other."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import apac
from apac.inference import engine

U = apac.Compose(apac.Homography(0.1), apac.Flip())
# Batches of different sizes are summed in different orders: a few float32 steps of logits near 1, and no more than the
# 1e-4 that promise 2 allows.
ROUNDING = 1e-5


@pytest.fixture
def classifier(random) -> apac.Classifier:
    layer = nn.Linear(64, 5)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(5, 64, generator=random))
    return apac.Classifier(nn.Sequential(nn.Flatten(), layer), U, apac.Certified(error=0.1, limit=64))


@pytest.fixture
def images(random) -> Tensor:
    return torch.rand(23, 1, 8, 8, generator=random)


def test_the_decisions_are_those_of_all_images_at_once(classifier, images):
    streamed = apac.Decision.concatenate(list(classifier.stream(images.split(7))))
    together = classifier.decide(images)
    assert torch.equal(streamed.labels, together.labels)
    assert torch.equal(streamed.passes, together.passes)
    torch.testing.assert_close(streamed.log_scores, together.log_scores, rtol=0, atol=ROUNDING)


def test_a_data_loader_of_images_and_labels_is_an_iterable_of_batches(classifier, images):
    loader = DataLoader(TensorDataset(images, torch.arange(23)), batch_size=10)
    assert [len(decision.labels) for decision in classifier.stream(loader)] == [10, 10, 3]


def test_a_batch_is_taken_only_after_the_decision_before_it_was_used(classifier, images):
    taken = []

    def batches() -> Iterator[Tensor]:
        for number, batch in enumerate(images.split(5)):
            taken.append(number)
            yield batch

    stream = classifier.stream(batches())
    assert taken == []
    next(stream)
    assert taken == [0]
    next(stream)
    assert taken == [0, 1]


def test_a_long_stream_prepares_the_network_once(classifier, images, monkeypatch):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    exports = []
    monkeypatch.setattr(engine, "MIN_OPERATIONS", 1e6)  # the passes of a few batches
    export = engine.to_onnx
    monkeypatch.setattr(engine, "to_onnx", lambda *arguments: exports.append(1) or export(*arguments))
    together = classifier.decide(images)
    exports.clear()
    streamed = apac.Decision.concatenate(list(classifier.stream(images.split(1))))
    assert len(exports) == 1
    torch.testing.assert_close(streamed.log_scores, together.log_scores, rtol=0, atol=1e-4)  # of another engine


def test_an_empty_batch_has_an_empty_decision_and_no_batches_have_none(classifier, images):
    assert [len(decision.labels) for decision in classifier.stream([images[:0], images[:2]])] == [0, 2]
    assert list(classifier.stream([])) == []


@pytest.mark.parametrize("batch", [3, (), "photo.png", {"images": 1}])
def test_a_batch_without_images_is_refused(classifier, batch):
    with pytest.raises(apac.InputError, match="images must be a floating-point tensor"):
        next(classifier.stream([batch]))


def test_a_batch_is_released_before_the_next_one_is_made(classifier, images):
    made: list[weakref.ref[Tensor]] = []

    def batches() -> Iterator[Tensor]:
        for number in range(3):
            assert all(batch() is None for batch in made)
            batch = images[5 * number : 5 * number + 5].clone()
            made.append(weakref.ref(batch))
            yield batch
            del batch

    for decision in classifier.stream(batches()):
        assert len(decision.labels) == 5
    assert len(made) == 3
