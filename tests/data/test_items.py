"""A torch Dataset that is read by a DataLoader: once into memory, or again for every batch."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

import apac
from apac.data.items import ItemReader, read_items, streamed_items
from apac.distributed.ranks.group import Group
from apac.progress import no_progress
from apac.training.loop import plain_error
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


def streamed_weights() -> tuple[Tensor, int]:
    dataset = CountedItems()
    run = apac.train(network(), dataset, apac.Flip(), config=CONFIG, stream=True)
    return weights(run), sum(dataset.read.values())


def test_ranks_stream_their_own_rows_and_have_the_weights_of_one_process():
    alone, reads = streamed_weights()
    ranks = on_ranks(2, streamed_weights)
    assert all((other - alone).abs().max() <= 1e-6 for other, _ in ranks)
    # Half of two epochs of 24 rows and 6 held-out images. Both ranks digest the 18 images to train on, one fits them.
    half = reads - (2 * 24 + 2 * 6) // 2
    assert [own for _, own in ranks] == [half + 18, half]


def test_a_rank_without_a_held_out_image_does_not_call_the_network():
    class Alone(Group):
        def sum_(self, tensor: Tensor) -> Tensor:
            return tensor

    calls: list[int] = []

    class Network(torch.nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            calls.append(len(images))
            return images.flatten(1)[:, :2]

    for rank in (0, 1):
        assert plain_error(Network(), torch.zeros(1, 1, 2, 2), torch.zeros(1).long(), group=Alone(rank, 2)) == 0
    assert calls == [1]


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
            if self.file.stat().st_size >= 5:
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
        ((torch.zeros(1, 8, 8, dtype=torch.uint8), 0.7), "is not a pair .image, label.: TypeError: 'float' object"),
        (
            (torch.zeros(1, 8, 8, dtype=torch.uint8), 2**70),
            "item 7 of the dataset has the label 11805916",
        ),
        (
            (torch.zeros(1, 8, 8, dtype=torch.uint8), "cat"),
            "is not a pair .image, label.: TypeError: 'str' object",
        ),
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


@pytest.mark.parametrize("cached", [False, True])
def test_a_dataset_without_a_length_is_refused(cached, tmp_path):
    class Endless(Items):
        def __len__(self) -> int:
            raise NotImplementedError

    with pytest.raises(apac.InputError, match="the length of the dataset is unknown: NotImplementedError"):
        apac.train(network(), Endless(), apac.Flip(), config=CONFIG, cache=tmp_path if cached else None)


class GradientItems(Items):
    """Images that need a gradient, which no process may send to another."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = super().__getitem__(index)
        return (image.float() / 255).requires_grad_() * 1, label


def test_images_that_need_a_gradient_are_read_by_workers():
    run = apac.train(network(), GradientItems(), apac.Flip(), config=CONFIG, workers=1)
    assert torch.equal(weights(run), weights(apac.train(network(), FloatItems(), apac.Flip(), config=CONFIG)))


@pytest.mark.parametrize("stream", [False, True])
def test_floats_outside_of_what_a_deformation_expects_are_refused(stream):
    class Large(FloatItems):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            image, label = super().__getitem__(index)
            return 10 * image, label

    with pytest.raises(apac.InputError, match="expects pixels in 0 … 1"):
        apac.train(network(), Large(), apac.Color(), config=CONFIG, stream=stream)


def test_reading_a_dataset_draws_no_random_numbers_and_leaves_no_process():
    before, state = len(multiprocessing.active_children()), torch.get_rng_state()

    def stop() -> bool:
        return len(calls) > 1 or bool(calls.append(0))

    calls: list[int] = []
    with pytest.raises(apac.ApacError) as kept:  # and the frames of the training with it
        apac.train(network(), Items(), apac.Flip(), config=CONFIG, stream=True, workers=2, should_stop=stop)
    assert "stopped" in str(kept.value) or "interrupted" in str(kept.value)
    assert torch.equal(torch.get_rng_state(), state)
    assert len(multiprocessing.active_children()) == before


@pytest.mark.filterwarnings("ignore:Got pickle error")
def test_a_dataset_that_cannot_be_sent_to_another_process_is_refused(monkeypatch):
    class Local(Items):
        """Cannot be imported by another process."""

    loader = partial(torch.utils.data.DataLoader, multiprocessing_context="spawn")
    monkeypatch.setattr(torch.utils.data, "DataLoader", loader)
    with pytest.raises(apac.InputError, match=r"cannot be read by 1 processes: .* or use workers=0"):
        apac.train(network(), Local(), apac.Flip(), config=CONFIG, workers=1)
