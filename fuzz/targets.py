"""What is fuzzed: seeds that this project makes itself, and a function that loads a mutated one.

A target returns or raises ApacError, whose message is one short line. Everything else is a finding.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from PIL import Image, features
from torch import nn

import apac
from apac.classify.scores import Scores
from apac.data.image_file import decode_bytes, without_warnings
from apac.data.normalize import Standardization
from apac.evaluation.records import decision_records, records_to_csv
from apac.evaluation.score_cache import SUMS, ScoreCache, cache_key
from apac.inference.onnx_export import to_onnx
from apac.randomness import generator
from apac.runs.classified import ClassifiedImages
from apac.runs.folder import PRETRAINED
from apac.runs.run import save
from apac.runs.storage import read_tensors, write_tensors
from apac.training import checkpoint
from apac.training.loop import init_state
from apac.validation import parse_json, validate_class_names
from fuzz.mutate import mutate_bytes, mutate_json, mutate_picture, mutate_tensors

SHAPE = (1, 4, 4)
NAMES = (
    *("image", "run.json", "small run.json", "tuning.json", "weights", "deformation", "checkpoint", "scores", "names"),
    "onnx",
)
IMAGES = torch.linspace(0, 1, 32).view(2, *SHAPE)


@dataclass(frozen=True)
class Target:
    seeds: tuple[bytes, ...]
    load: Callable[[bytes], object]
    mutate: Callable[[bytes, Random], bytes] = mutate_bytes


def network() -> nn.Module:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
    return layers.eval()


def targets(folder: Path) -> dict[str, Target]:
    """Return all targets, which work in a folder."""
    run = folder / "run"
    small = replace(
        apac.load("mnist-cnn"),
        network_name=None,
        network=network(),
        normalization=Standardization(torch.tensor([0.5]), torch.tensor([0.25])),
        classes=("a", "b", "c"),
        image_shape=SHAPE,
        deformation=apac.presets.mnist(),
        choice=None,
    )
    save(small, run, "digest")
    shipped = Path(shutil.copytree(PRETRAINED / "mnist-cnn", folder / "shipped"))
    for path in (run / "run.json", shipped / "run.json"):
        path.write_bytes(_short(path.read_bytes()))
    return {
        "image": Target(_pictures(), _load_image, mutate_picture),
        "run.json": _in_file(shipped / "run.json", mutate_json, lambda: apac.load(shipped)),
        "small run.json": _in_file(run / "run.json", mutate_json, lambda: apac.load(run, network())),
        "tuning.json": _in_file(shipped / "tuning.json", mutate_json, lambda: apac.load(shipped)),
        "weights": _in_file(run / "weights.safetensors", mutate_tensors, lambda: _decide(apac.load(run, network()))),
        "deformation": Target(_deformations(), _load_deformation, mutate_json),
        "checkpoint": _checkpoint(folder / "checkpoint.safetensors"),
        "scores": _scores(folder / "scores"),
        "names": Target((json.dumps(["cat", "dog, big", '"=1+1"']).encode(),), _write_names, mutate_json),
        "onnx": Target((to_onnx(network(), IMAGES),), _onnx(folder / "network.onnx")),
    }


def _in_file(path: Path, mutate: Callable[[bytes, Random], bytes], load: Callable[[], object]) -> Target:
    """Return the target that writes a mutated file among the other files of a folder, and loads them."""
    original = path.read_bytes()

    def write_and_load(data: bytes) -> None:
        path.write_bytes(data)
        try:
            load()
        finally:
            path.write_bytes(original)

    return Target((original,), write_and_load, mutate)


def _short(data: bytes) -> bytes:
    """Return a run without most of its history, so that changes hit the other values and loading is fast."""
    payload = json.loads(data)
    return json.dumps(payload | {"history": payload["history"][:2]}).encode()


def _decide(run: apac.Run) -> None:
    run.classifier(apac.FixedPasses(2)).decide(IMAGES)


def _pictures() -> tuple[bytes, ...]:
    picture = Image.new("RGBA", (24, 20), (250, 240, 230, 255))
    picture.paste((10, 20, 30, 128), (5, 5, 15, 12))
    exif = Image.Exif()
    exif[0x0112] = 6
    kinds: list[tuple[str, str, dict[str, Any]]] = [
        ("PNG", "RGBA", {"exif": exif}),
        ("PNG", "P", {}),
        ("PNG", "1", {}),
        ("JPEG", "RGB", {"exif": exif}),
        ("JPEG", "L", {"progressive": True}),
        ("JPEG", "CMYK", {}),
        ("WEBP", "RGBA", {"exif": exif}),
        ("GIF", "P", {}),
        ("BMP", "RGB", {}),
        ("TIFF", "RGB", {"compression": "tiff_lzw"}),
        ("TIFF", "L", {}),
        ("PPM", "RGB", {}),
        *([("AVIF", "RGB", {})] if features.check("avif") else []),
    ]
    files = []
    for name, mode, options in kinds:
        file = io.BytesIO()
        picture.convert(mode).save(file, name, **options)
        files.append(file.getvalue())
    return (*files, b"P2\n# text\n3 3 255\n0 0 0 0 255 0 0 0 0\n")


def _load_image(data: bytes) -> None:
    with without_warnings():
        decode_bytes(data, (3, 32, 32), max_pixels=1_000_000)
        decode_bytes(data, (1, 28, 28), digit=True, max_pixels=1_000_000)


def _deformations() -> tuple[bytes, ...]:
    parts: list[apac.Deformation] = [
        apac.Compose(apac.presets.mnist(), apac.Jitter(), apac.FeatureDropout(), apac.Shift()),
        apac.Compose(apac.presets.photos(), apac.Elastic(reference_size=4), apac.Thickness(reference_size=4)),
        apac.Compose(apac.TimeShift(), apac.TimeWarp(), apac.Amplitude()),
        apac.PerClass({1: apac.Homography(shear=0.1)}, default=apac.presets.cifar10(), classes=3),
    ]
    return tuple(json.dumps(part.to_json()).encode() for part in parts)


def _load_deformation(data: bytes) -> None:
    try:
        payload = parse_json(data)
    except ValueError:  # whoever reads a file says so
        return
    u = apac.Deformation.from_json(payload)
    images = torch.rand(3, 1, 6, 7, generator=generator(0, "fuzz", 0))
    labels = torch.tensor([0, 0, 0])
    for strength in (1.0, 0.5):
        result = u.scaled(strength)(images, generator=generator(1, "fuzz", 0), labels=labels)
        assert result.shape == images.shape
        assert not result.isnan().any(), "NaN"
    assert apac.Deformation.from_json(u.to_json()) == u


def _checkpoint(path: Path) -> Target:
    config = apac.TrainConfig(epochs=3).resolve(None, None)
    state = init_state(network(), config)
    write_tensors(path, *checkpoint.to_tensors(state, config))
    seed = path.read_bytes()

    def load(data: bytes) -> None:
        path.write_bytes(data)
        fresh = init_state(network(), config)
        checkpoint.restore(fresh, config, SHAPE, *read_tensors(path, "start again"))
        assert isinstance(fresh.step, int)

    return Target((seed,), load, mutate_tensors)


def _scores(folder: Path) -> Target:
    classifier = apac.Classifier(network(), apac.Jitter(), apac.FixedPasses(4))
    path = folder / f"{cache_key(classifier, IMAGES)}-2.safetensors"
    scores = Scores.zero(2, 3).add(torch.full((2, 2, 3), -1.0))
    metadata = {"passes": "2", "seconds": "1.5"}
    write_tensors(path, {name: getattr(scores, name) for name in SUMS}, metadata)
    seed = path.read_bytes()

    def load(data: bytes) -> None:
        for other in folder.iterdir():
            other.unlink()
        path.write_bytes(data)
        assert ScoreCache(classifier, IMAGES, 4, folder).get(4).log_sum.shape == (2, 3)

    return Target((seed,), load, mutate_tensors)


def _write_names(data: bytes) -> None:
    try:
        names = validate_class_names(parse_json(data))
    except apac.InputError:
        raise
    except ValueError:
        return
    count = len(names)
    if count > 50 or len(set(names)) < count:
        return
    images = torch.linspace(0, 1, 2 * count).view(2, 1, 1, count)
    decision = apac.Classifier(lambda x: x.flatten(1), apac.Jitter(), apac.FixedPasses(2)).decide(images)
    classified = ClassifiedImages((Path("a\nb.png"), Path("ü,;.png")), decision, names, ((), ()), {})
    text = records_to_csv(decision_records(classified), names).encode().decode()
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert rows[0][-count:] == [f"probability_{name}" for name in names]
    assert [row[0] for row in rows[1:]] == ["a\nb.png", "ü,;.png"]


def _onnx(path: Path) -> Callable[[bytes], None]:
    def load(data: bytes) -> None:
        path.write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            apac.from_onnx(path)(IMAGES)

    return load
