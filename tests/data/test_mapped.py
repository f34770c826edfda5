"""Pixels in a memory-mapped file: those of memory, made once, all or nothing."""

from __future__ import annotations

import errno
import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import apac
from apac.data import cached, mapped
from apac.data.folder import load
from image_folders import paint
from torch_items import Items, network, weights

CONFIG = apac.TrainConfig(epochs=1, batch_size=8, validation_fraction=0.25)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(20):
        paint(tmp_path / "images" / f"c{number % 2}" / f"{number}.png", (90, 90, 90), seed=number)
    return tmp_path / "images"


@pytest.mark.parametrize("workers", [0, 2])
def test_training_on_a_cache_equals_training_in_memory(tmp_path, workers):
    in_memory = apac.train(network(), Items(), apac.Flip(), config=CONFIG)
    cached_run = apac.train(network(), Items(), apac.Flip(), config=CONFIG, cache=tmp_path / "cache", workers=workers)
    assert torch.equal(weights(cached_run), weights(in_memory))
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == [".json", ".u8"]


def test_training_on_a_folder_that_is_decoded_for_every_batch_equals_training_in_memory(folder, tmp_path):
    config = replace(CONFIG, size=8)
    layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))
    runs = [
        apac.train(deepcopy(layers), folder, apac.Flip(), config=config, stream=stream, out=tmp_path / f"{stream}")
        for stream in (False, True)
    ]
    assert torch.equal(weights(runs[0]), weights(runs[1]))


def test_a_file_that_changes_while_the_folder_is_decoded_for_batches_is_named(folder):
    found = load(folder, size=8, stream=True)
    expected = load(folder, size=8)
    assert torch.equal(found.train_images[torch.tensor([3, 0, 3])], expected.train_images[[3, 0, 3]])
    assert found.train_images[torch.tensor([], dtype=torch.int64)].shape == (0, 3, 8, 8)
    paint(found.train_files[3], (10, 10, 10))
    with pytest.raises(apac.InputError, match=f"{found.train_files[3].name} changed while the images were used"):
        found.train_images[2:5]
    found.train_files[3].unlink()
    with pytest.raises(apac.InputError, match="changed while the images were used"):
        found.train_images[2:5]


def test_a_folder_in_a_cache_has_the_pixels_of_memory_and_is_decoded_once(folder, tmp_path, monkeypatch):
    expected = load(folder, size=8)
    found = load(folder, size=8, cache=tmp_path / "cache")
    monkeypatch.setattr(cached, "write_file", None)  # it is not written again
    again = load(folder, size=8, cache=tmp_path / "cache")
    for dataset in (found, again):
        assert torch.equal(dataset.train_images[:], expected.train_images)
        assert torch.equal(dataset.test_images[:], expected.test_images)
        assert torch.equal(dataset.train_labels, expected.train_labels)
        assert dataset.train_files == expected.train_files


@pytest.mark.parametrize("damage", ["truncated", "changed"])
def test_a_damaged_cache_is_made_again(folder, tmp_path, damage):
    expected = load(folder, size=8, cache=tmp_path / "cache").train_images[:]
    (path,) = (tmp_path / "cache").glob("*.u8")
    pixels = bytearray(path.read_bytes())
    pixels[5] ^= 1
    path.write_bytes(pixels[:-1] if damage == "truncated" else pixels)
    assert torch.equal(load(folder, size=8, cache=tmp_path / "cache").train_images[:], expected)


@pytest.mark.parametrize(
    "values",
    [
        *({"read": value} for value in (["x"] * 20, [1] * 20, [True] * 19, [False] * 20, 5)),
        *({"labels": value} for value in (["x"] * 20, [10**30] * 20, [], None)),
        *({"digests": value} for value in ([5] * 20, [], "x" * 20)),
        *({"shape": value} for value in ([3, 4, 16], ["x"], [], 5, [3, -8, -8])),
        {"other": 1},
    ],
    ids=str,
)
def test_a_damaged_description_is_made_again(folder, tmp_path, values):
    expected = load(folder, size=8, cache=tmp_path / "cache").train_images[:]
    (path,) = (tmp_path / "cache").glob("*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    assert torch.equal(load(folder, size=8, cache=tmp_path / "cache").train_images[:], expected)


@pytest.mark.parametrize("text", ["[" * 100_000, "5", "[]", "{", "\udc80"])
def test_a_text_that_is_no_description_is_made_again(folder, tmp_path, text):
    expected = load(folder, size=8, cache=tmp_path / "cache").train_images[:]
    (path,) = (tmp_path / "cache").glob("*.json")
    path.write_bytes(text.encode(errors="surrogateescape"))
    assert torch.equal(load(folder, size=8, cache=tmp_path / "cache").train_images[:], expected)


def test_a_description_of_many_values_is_not_parsed(folder, tmp_path, monkeypatch):
    expected = load(folder, size=8, cache=tmp_path / "cache").train_images[:]
    (path,) = (tmp_path / "cache").glob("*.json")
    path.write_text('{"source": [' + '{"":0},' * 300_000 + "0]}")  # the objects would take 100 MB

    parse = json.loads

    def watch(text: bytes) -> Any:
        assert len(text) < 10_000
        return parse(text)

    with monkeypatch.context() as patch:
        patch.setattr(json, "loads", watch)
        assert torch.equal(load(folder, size=8, cache=tmp_path / "cache").train_images[:], expected)


def test_a_changed_file_is_decoded_again(folder, tmp_path):
    load(folder, size=8, cache=tmp_path / "cache")
    paint(folder / "c0" / "0.png", (10, 90, 90), seed=99)
    assert torch.equal(
        load(folder, size=8, cache=tmp_path / "cache").train_images[:], load(folder, size=8).train_images
    )


def test_a_folder_that_changes_while_it_is_read_is_refused_and_nothing_is_left(folder, tmp_path):
    def progress(task: str, done: int, total: int, note: str = "") -> None:
        if done == 3:
            paint(folder / "c0" / "new.png", (90, 90, 90))

    with pytest.raises(apac.InputError, match="changed while they were read"):
        load(folder, size=8, cache=tmp_path / "cache", progress=progress)
    assert not list((tmp_path / "cache").iterdir())


def test_a_disk_that_fills_leaves_nothing(folder, tmp_path, monkeypatch):
    def full(image: Tensor) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(mapped, "image_digest", full)
    with pytest.raises(apac.StorageError, match="No space left on device; nothing is left"):
        load(folder, size=8, cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_description_that_is_not_written_leaves_no_pixels(folder, tmp_path, monkeypatch, error):
    def fails(payload: object) -> str:
        assert list((tmp_path / "cache").glob("*.u8"))  # the pixels are written
        raise error

    monkeypatch.setattr(mapped, "json", SimpleNamespace(loads=json.loads, dumps=fails))
    with pytest.raises((apac.StorageError, KeyboardInterrupt)):
        load(folder, size=8, cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_the_size_is_reported_before_and_compared_with_the_disk(folder, tmp_path, monkeypatch):
    notes = []
    load(folder, size=8, cache=tmp_path / "cache", progress=lambda task, done, total, note="": notes.append(note))
    assert notes[0].startswith("0.00 GB to ")
    monkeypatch.setattr(mapped.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10})())
    with pytest.raises(apac.InputError, match="GB left; choose another"):
        load(folder, size=9, cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        (Items(broken=7), "item 7 of the dataset is not a pair .image, label.: KeyError: 'no such file'"),
        (
            Items(broken=9, shape=(1, 8, 9)),
            "got torch.uint8 .1, 8, 9. for item 9, and",
        ),
    ],
)
def test_a_dataset_that_raises_or_changes_its_shape_is_refused_in_one_sentence(dataset, sentence, tmp_path):
    with pytest.raises(apac.InputError, match=sentence):
        apac.train(network(), dataset, apac.Flip(), config=CONFIG, cache=tmp_path / "cache", workers=2)
    assert not list((tmp_path / "cache").iterdir())


def test_pages_are_given_back(tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "RELEASE", 1)
    path = tmp_path / "pixels.u8"
    mapped.write_file(path, "test", (1, 2, 2), iter([(torch.full((1, 2, 2), 7, dtype=torch.uint8), 0)] * 3), 3)
    images = mapped.MappedImages(path, (3, 1, 2, 2))
    assert torch.equal(images[torch.tensor([2, 0])], torch.full((2, 1, 2, 2), 7, dtype=torch.uint8))
    assert [tuple(part.shape) for part in images.split(2)] == [(2, 1, 2, 2), (1, 1, 2, 2)]
    assert len(images.subset(torch.tensor([1]))[:]) == 1
