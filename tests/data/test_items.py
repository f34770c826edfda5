"""A torch Dataset that is read by a DataLoader: once into memory, or again for every batch."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import apac
from apac.data.items import ItemReader, read_items, streamed_items
from apac.progress import no_progress
from ranked import on_ranks
from torch_items import Items, network, weights

CONFIG = apac.TrainConfig(epochs=2, batch_size=8, validation_fraction=0.25)


class FloatItems(Items):
    """Floating-point images, which no cache holds."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = super().__getitem__(index)
        return image.float() / 255, label


class RandomItems(Items):
    """A random transform in the Dataset."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = super().__getitem__(index)
        return (image.flip(2) if torch.rand(()) < 0.5 else image), label


class CountedItems(Items):
    """Counts how often its items are read, in the process that reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[int, int] = {}

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.read[index] = self.read.get(index, 0) + 1
        return super().__getitem__(index)


class DyingItems(Items):
    """The process that reads item 20 is killed, as by a system without memory."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize("dataset", [Items(), FloatItems()], ids=["uint8", "float"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_streamed_dataset_gives_the_weights_of_one_in_memory(dataset, workers):
    labels = torch.tensor([label for _, label in map(dataset.__getitem__, range(24))])
    images = torch.stack([image for image, _ in map(dataset.__getitem__, range(24))])
    expected = apac.train(network(), (images, labels), apac.Flip(), config=CONFIG)
    in_memory = apac.train(network(), dataset, apac.Flip(), config=CONFIG, workers=workers)
    streamed = apac.train(network(), dataset, apac.Flip(), config=CONFIG, workers=workers, stream=True)
    assert torch.equal(weights(in_memory), weights(expected))
    assert torch.equal(weights(streamed), weights(expected))
    assert [e.validation_error for e in streamed.history] == [e.validation_error for e in expected.history]


def streamed_weights() -> Tensor:
    return weights(apac.train(network(), Items(), apac.Flip(), config=CONFIG, stream=True))


def test_ranks_stream_their_own_rows_and_have_the_weights_of_one_process():
    alone = streamed_weights()
    for other in on_ranks(2, streamed_weights):
        assert (other - alone).abs().max() <= 1e-6


def test_a_dataset_is_read_again_for_every_batch_and_nothing_of_it_is_kept():
    dataset = CountedItems()
    images, _ = streamed_items(ItemReader(dataset), 0, no_progress)
    before = dataset.read.copy()
    read = list(images.batches(torch.tensor([[3, 5], [5, 5]])))
    assert torch.equal(read[1], dataset.images[[5, 5]])
    assert dataset.read == before | {3: before[3] + 1, 5: before[5] + 3}
    assert [tuple(part.shape) for part in images.split(16)] == [(16, 1, 8, 8), (8, 1, 8, 8)]
    assert images[:0].shape == (0, 1, 8, 8)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_random_transform_of_a_streamed_dataset_is_refused(workers):
    with pytest.raises(apac.InputError, match="random transforms belong to the deformation"):
        apac.train(network(), RandomItems(), apac.Flip(), config=CONFIG, stream=True, workers=workers)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork in a process with threads
def test_a_worker_that_is_killed_ends_the_training_in_one_sentence():
    with pytest.raises(apac.InputError, match="a worker that reads the dataset ended"):
        list(read_items(ItemReader(DyingItems()), 1, no_progress))


class DyingLater(Items):
    """The process that reads item 20 for the fifth time is killed, while the network trains."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == 20:
            with self.file.open("a") as file:
                file.write(".")
            if self.file.stat().st_size == 5:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_a_worker_that_is_killed_while_the_network_trains_ends_it_in_one_sentence(tmp_path):
    config = replace(CONFIG, epochs=50)
    with pytest.raises(apac.InputError, match="a worker that reads the dataset ended"):
        apac.train(network(), DyingLater(tmp_path / "reads"), apac.Flip(), config=config, stream=True, workers=2)


@pytest.mark.parametrize(
    ("item", "sentence"),
    [
        ((torch.zeros(1, 8, 8), 0), "got torch.float32 .1, 8, 8. for item 7, and torch.uint8 .1, 8, 8. for item 0"),
        ((torch.zeros(8, dtype=torch.uint8), 0), "item 7 of the dataset must be uint8 or floating-point .C, H, W."),
        ((torch.zeros(1, 8, 8, dtype=torch.int32), 0), "item 7 of the dataset must be uint8 or floating-point"),
        ((torch.zeros(1, 8, 8, dtype=torch.uint8), "cat"), "item 7 of the dataset is not a pair .image, label.: Value"),
    ],
)
def test_an_item_of_another_kind_is_named(item, sentence):
    class Odd(Items):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return item if index == 7 else super().__getitem__(index)

    with pytest.raises(apac.InputError, match=sentence):
        apac.train(network(), Odd(), apac.Flip(), config=CONFIG)


def test_a_float_that_is_not_finite_is_named():
    class NotFinite(FloatItems):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            image, label = super().__getitem__(index)
            return image / (index != 5), label

    with pytest.raises(apac.InputError, match="item 5 of the dataset has NaN or infinite pixels"):
        apac.train(network(), NotFinite(), apac.Flip(), config=CONFIG, stream=True)


@pytest.mark.parametrize("data", ["mnist-5k", (torch.zeros(4, 1, 8, 8), torch.tensor([0, 1, 0, 1]))])
def test_data_that_are_in_memory_are_not_streamed(data):
    with pytest.raises(apac.InputError, match="stream=True reads a folder or a torch Dataset again for every batch"):
        apac.train(network(), data, apac.Flip(), config=CONFIG, stream=True)


@pytest.mark.parametrize("workers", [-1, 0.5])
def test_a_number_of_workers_that_is_not_one_is_refused(workers):
    with pytest.raises(apac.InputError, match="workers must be an integer of at least 0, got "):
        apac.train(network(), Items(), apac.Flip(), config=CONFIG, workers=workers)
