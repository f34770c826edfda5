"""Runs, deformations, folders, jobs, ONNX files, weights and scores that ask for too much or are damaged."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import onnx
import torch
from PIL import Image, ImageDraw
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import apac
from apac import limits
from apac.errors import Interrupted
from apac.inference.onnx_export import to_onnx
from apac.runs.folder import PRETRAINED, checkpoint_path
from fuzz.file_targets import small_job
from fuzz.mutate import nested
from fuzz.target import IMAGES, network

Write = Callable[[Path], object]

FLIPS = [{"kind": "Flip"}]
_FLIP = {"class": "kornia.augmentation.RandomHorizontalFlip", "parts": [], "arguments": {}}
KORNIA = {"kind": "from_kornia", "before": None, "transform": _FLIP, "after": None}
DEFORMATIONS: dict[str, Any] = {
    "Compose 400 deep": nested(400),
    "Compose of 20,000 parts": {"kind": "Compose", "parts": FLIPS * 20_000},
    "Elastic, sigma 1e8": {"kind": "Elastic", "sigma": 1e8},
    "Elastic, sigma 1e308": {"kind": "Elastic", "sigma": 1e308},
    "TimeWarp, 1e9 parts": {"kind": "TimeWarp", "parts": 1_000_000_000},
    "FeatureDropout 1e308": {"kind": "FeatureDropout", "p": 1e308},
    "3,300 transforms of kornia": {"kind": "Compose", "parts": [KORNIA] * 3_300},
    "PerClass, 1e7 classes": {"kind": "PerClass", "by_class": [], "default": FLIPS[0], "classes": 10_000_000},
}
RUNS: dict[str, dict[str, Any]] = {
    "shape 1 × 30000 × 30000": {"image_shape": [1, 30_000, 30_000]},
    "shape 1 × 2000 × 2000": {"image_shape": [1, 2_000, 2_000]},
    "resnet for 3 × 4096 × 4096": {"image_shape": [3, 4_096, 4_096], "network": "resnet"},
    "mnist-mlp of 100,000 classes": {"classes": [str(i) for i in range(100_000)], "network": "mnist-mlp"},
    "a function of numpy": {"image_shape": [262_144, 16, 16], "network": "numpy:full"},
    "a function of apac": {"image_shape": [262_144, 16, 16], "network": "apac.models.resnet:resnet"},
    "class names, lone surrogates": {"classes": ["\ud800", *"123456789"]},
    "class names of 1 MB": {"classes": ["x" * 1_000_000, *"123456789"]},
    "history of 90,000 epochs": {"history": [{"epoch": 1, "loss": 0.0, "seconds": "x"}] * 90_000},
}
JOBS: dict[str, dict[str, Any]] = {
    "part size 0": {"part size": 0},
    "1e15 files": {"files": 10**15},
    "1e15 files in parts of 1e9": {"files": 10**15, "part size": 10**9},
    "settings 5": {"settings": 5},
}
FOLDERS = {
    "train": ("train", "--data", "digits", "--epochs", "1", "--out", "new"),
    "evaluate": ("evaluate", "mnist-cnn", "--data", "digits", "--passes", "1"),
    "preview": ("preview", "digits/0/comment.ppm", "--out", "preview.png"),
}
TEXTS: dict[str, Callable[[], bytes]] = {
    "10,000 levels": lambda: b"[" * 10_000 + b"]" * 10_000,
    "2 million values": lambda: b"[" + b"0," * 2_000_000 + b"0]",
    "33 MB": lambda: b'["' + b"x" * 33_000_000 + b'"]',
    "250,000 objects": lambda: b"[" + b'{"":0},' * 249_999 + b"{}]",
    "290,000 keys": lambda: ("{" + ",".join(f'"{i:x}":0' for i in range(290_000)) + "}").encode(),
    "16 MB of one text": lambda: '["{}\U0001f600"]'.format("x" * 16_000_000).encode(),
    "3,800 integers of 4,299 digits": lambda: b"[" + b",".join([b"1" * 4_299] * 3_800) + b"]",
}
ONNX_PROGRAM = """
import sys, apac
try:
    apac.from_onnx("network.onnx")
except apac.InputError as error:
    print(f"apac: {error}", file=sys.stderr)
    sys.exit(2)
"""
ONNX = ("-c", ONNX_PROGRAM)  # no command reads such a file
CLASSIFY = ("classify", "run", "digit.png")
TUNED = ("evaluate", "run", "--passes", "1")
MERGE = ("merge", "job", "--csv", "merged.csv")
WEIGHTS = ("train", "--weights", "run/weights.safetensors", "--epochs", "1", "--out", "new")
TRAIN = ("train", "--deformation", "u.json", "--epochs", "1", "--out", "new")
EVALUATE = ("evaluate", "mnist-cnn", "--data", "digits", "--passes", "1", "--overwrite")


def refused() -> dict[str, tuple[tuple[str, ...], Write]]:
    """Return, by name, commands that must be refused, and how to write the files that they read."""
    commands: dict[str, tuple[tuple[str, ...], Write]] = {}
    for name, make in TEXTS.items():
        commands[f"run.json: {name}"] = CLASSIFY, _run({}, text=make)
        commands[f"tuning.json: {name}"] = TUNED, _run({}, text=make, file="tuning.json")
        commands[f"deformation: {name}"] = TRAIN, _text("u.json", make)
        commands[f"job.json: {name}"] = MERGE, _job(text=make)
    for name, values in RUNS.items():
        commands[f"run.json: {name}"] = CLASSIFY, _run(values)
    for name, deformation in DEFORMATIONS.items():
        commands[f"deformation: {name}"] = TRAIN, _text("u.json", json.dumps(deformation).encode)
        commands[f"run.json: {name}"] = CLASSIFY, _run({"deformation": deformation})
    for name, values in JOBS.items():
        commands[f"job.json: {name}"] = MERGE, _job(values)
    for name, command in FOLDERS.items():
        commands[f"folder: endless comment, {name}"] = command, _folder
    for name, change in TENSORS.items():
        commands[f"weights: {name}"] = CLASSIFY, _tensors(change)
        commands[f"checkpoint: {name}"] = ("train", "--resume", "--out", "run"), _checkpoint(change)
        commands[f"initial weights: {name}"] = WEIGHTS, _tensors(change)
    for name, write in NETWORKS.items():
        commands[f"onnx: {name}"] = ONNX, write
    return commands


def read() -> dict[str, tuple[tuple[str, ...], Write]]:
    """Return commands that succeed although a file is damaged or large, by name.

    Cached scores are computed again, and how often answers were right is not printed.
    """
    commands: dict[str, tuple[tuple[str, ...], Write]] = {}
    for name, change in TENSORS.items():
        commands[f"scores: {name}"] = EVALUATE, _scores(change)
    for name, make in TEXTS.items():
        commands[f"reliability.json: {name}"] = CLASSIFY, _run({}, text=make, file="reliability.json")
    commands["folder: endless comment, preview of all"] = ("preview", "digits", "--out", "preview.png"), _folder
    commands["onnx: the largest size"] = ONNX, _large_onnx("MatMul")
    return commands


def digit(path: Path) -> None:
    """Write a picture that is read."""
    picture = Image.new("L", (60, 80), 255)
    ImageDraw.Draw(picture).line([(10, 10), (50, 20), (20, 70)], fill=0, width=6)
    picture.save(path)


def _run(values: dict[str, Any], text: Callable[[], bytes] | None = None, file: str = "run.json") -> Write:
    def write(place: Path) -> None:
        digit(place / "digit.png")
        run = Path(shutil.copytree(PRETRAINED / "mnist-cnn", place / "run"))
        if text is not None:
            (run / file).write_bytes(text())
        else:
            (run / file).write_text(json.dumps(json.loads((run / file).read_text()) | values))

    return write


def _text(name: str, make: Callable[[], bytes]) -> Write:
    return lambda place: (place / name).write_bytes(make())


def _job(values: dict[str, Any] | None = None, text: Callable[[], bytes] | None = None) -> Write:
    def write(place: Path) -> None:
        path = small_job(place).files.folder / "job.json"
        path.write_bytes(json.dumps(json.loads(path.read_text()) | (values or {})).encode() if text is None else text())

    return write


def _folder(place: Path) -> None:
    """Write a folder of two classes, in which a header does not end."""
    for name in ("0", "7"):
        (place / "digits" / name).mkdir(parents=True)
        for number in range(4):
            digit(place / "digits" / name / f"{number}.png")
    (place / "digits" / "0" / "comment.ppm").write_bytes(b"P6\n#" + b"x" * (60 << 20))


# Tensors: each changes a file of tensors that was written before.


def _header(path: Path) -> None:
    size = limits.TENSOR_HEADER_BYTES + (1 << 20)
    path.write_bytes(size.to_bytes(8, "little") + b"{" + b" " * size)


def _many(path: Path) -> None:
    """Write a header just below the limit, of empty tensors."""
    tensors = {f"{i:x}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(130_000)}
    header = json.dumps(tensors, separators=(",", ":")).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)


def _sparse(path: Path) -> None:
    """Make every tensor 8 GB large, in a file without contents."""
    header = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
    begin = 0
    for name in sorted(header.keys() - {"__metadata__"}):
        header[name] |= {"dtype": "F32", "shape": [2 << 30], "data_offsets": [begin, begin + (8 << 30)]}
        begin += 8 << 30
    data = json.dumps(header).encode()
    path.write_bytes(len(data).to_bytes(8, "little") + data)
    with path.open("r+b") as file:
        file.truncate(8 + len(data) + begin)


def _nan(path: Path) -> None:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    save_file({name: torch.full_like(t, torch.nan) for name, t in load_file(path).items()}, path, metadata)


def _cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


TENSORS: dict[str, Callable[[Path], None]] = {
    "header of 9 MB": _header,
    "130,000 tensors": _many,
    "sparse tensors of 8 GB": _sparse,
    "NaN": _nan,
    "cut": _cut,
}


def _tensors(change: Callable[[Path], None]) -> Write:
    def write(place: Path) -> None:
        _run({})(place)
        change(place / "run" / "weights.safetensors")

    return write


def _checkpoint(change: Callable[[Path], None]) -> Write:
    def write(place: Path) -> None:
        stopped = place.parent / "stopped"  # made once
        if not stopped.exists():
            config = apac.TrainConfig(epochs=2)
            with suppress(Interrupted):
                apac.train("mnist-cnn", "mnist-5k", config=config, out=stopped / "run", should_stop=lambda: True)
        shutil.copytree(stopped, place, dirs_exist_ok=True)
        change(checkpoint_path(place / "run"))

    return write


def _scores(change: Callable[[Path], None]) -> Write:
    def write(place: Path) -> None:
        evaluated = place.parent / "evaluated"  # made once
        if not evaluated.exists():
            for name in ("0", "7"):
                (evaluated / "digits" / name).mkdir(parents=True)
                digit(evaluated / "digits" / name / "digit.png")
            subprocess.run([sys.executable, "-m", "apac", *EVALUATE], cwd=evaluated, check=True, capture_output=True)
        shutil.copytree(evaluated, place, dirs_exist_ok=True)
        for path in (place / "mnist-cnn" / "scores").iterdir():
            change(path)

    return write


# ONNX


def _external(place: Path) -> None:
    model = onnx.load_from_string(to_onnx(network(), IMAGES))
    tensor = model.graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "/etc/passwd", "length": str(10**12)}.items():
        tensor.external_data.add(key=key, value=value)
    (place / "network.onnx").write_bytes(model.SerializeToString())


def _onnx_bytes(make: Callable[[], bytes]) -> Write:
    return lambda place: (place / "network.onnx").write_bytes(make())


def _nodes(count: int) -> bytes:
    """Return a graph of empty nodes, of which each takes two bytes."""
    graph = onnx.GraphProto(node=[onnx.NodeProto()] * count)
    return onnx.ModelProto(graph=graph).SerializeToString()


def integers(count: int, keys: bytes) -> bytes:
    """Return a list of integers of a byte each, in messages and a field with these keys."""
    content = bytes(count)
    for key in reversed(keys):
        length, size = b"", len(content)
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        content = bytes([key]) + length + bytes([size]) + content
    return content


def _sparse_onnx(place: Path) -> None:
    with (place / "network.onnx").open("wb") as file:
        file.truncate(1 << 40)


def _large_onnx(operator: str) -> Write:
    """Return how to write a network of almost the largest size, of one operator."""

    def write(place: Path) -> None:
        columns = limits.ONNX_BYTES // 64 - 1000
        weights = onnx.TensorProto(name="w", data_type=1, dims=[16, columns], raw_data=bytes(4 * 16 * columns))
        value = onnx.helper.make_tensor_value_info
        nodes = [onnx.helper.make_node("Flatten", ["images"], ["flat"])]
        nodes.append(onnx.helper.make_node(operator, ["flat", "w"], ["logits"]))
        inputs, outputs = [value("images", 1, ["n", 1, 4, 4])], [value("logits", 1, ["n", columns])]
        graph = onnx.helper.make_graph(nodes, "large", inputs, outputs, [weights])
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        (place / "network.onnx").write_bytes(model.SerializeToString())

    return write


def _cut_onnx(place: Path) -> None:
    (place / "network.onnx").write_bytes(to_onnx(network(), IMAGES)[:-100])


NETWORKS: dict[str, Write] = {
    "external data": _external,
    "the largest size, of zeros": _onnx_bytes(lambda: bytes(limits.ONNX_BYTES)),
    "the largest size, of noise": _onnx_bytes(lambda: torch.arange(limits.ONNX_BYTES // 8).numpy().tobytes()),
    "1 TB, sparse": _sparse_onnx,
    "490,000 nodes": _onnx_bytes(lambda: _nodes(490_000)),
    "10 million nodes": _onnx_bytes(lambda: _nodes(10_000_000)),
    "180 million integers of a node": _onnx_bytes(lambda: integers(180_000_000, b"\x3a\x0a\x2a\x42")),
    "180 million integers of a tensor": _onnx_bytes(lambda: integers(180_000_000, b"\x3a\x2a\x3a")),
    "cut": _cut_onnx,
    "the largest size, of an unknown operator": _large_onnx("Unknown"),
}
