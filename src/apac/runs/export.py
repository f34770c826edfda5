"""Export of a run as an ONNX file: the preprocessing and the network in one graph."""

from __future__ import annotations

import copy
import json
import os
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from apac.data.normalize import Identity
from apac.data.zca import Whitening
from apac.errors import InputError, require
from apac.inference.engine import TOLERANCE, evaluating
from apac.inference.onnx_export import to_onnx
from apac.randomness import generator
from apac.runs.storage import write_bytes

if TYPE_CHECKING:
    from apac.runs.run import Run

BATCHES = (1, 3)  # numbers of images with which the exported graph is compared with the network


def export(run: Run, path: str | os.PathLike[str], *, whitened: bool = False, overwrite: bool = False) -> Path:
    """Write the ONNX file of a run and return its path; see `Run.export`."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the path of an .onnx file.")
    if path.suffix.lower() != ".onnx":
        raise InputError(f"the name of an ONNX file ends in .onnx, got {path}; choose another one.")
    if path.exists() and not overwrite:
        raise InputError(f"{path} already exists; replace it with overwrite=True, or choose another file.")
    if whitened and not isinstance(run.normalization, Whitening):
        raise InputError("this run does not whiten its images; omit whitened=True.")
    onnx = require("onnx", extra="fast")
    graph = _graph(run, whitened)
    images = torch.rand(max(BATCHES), *run.image_shape, generator=generator(0, "export", 0))
    if not torch.equal(run.deformation.preprocess(images), images):
        raise InputError(
            f"{run.deformation} has preprocessing of its own (before or after), which an ONNX file cannot contain; "
            f"export run.network with torch.onnx.export, or train with this preprocessing as the network's first layer."
        )
    model = onnx.load_from_string(_checked(graph, images))
    onnx.helper.set_model_props(model, _metadata(run, whitened))
    write_bytes(path, model.SerializeToString())
    return path


def _graph(run: Run, whitened: bool) -> nn.Module:
    """Return a copy of the network that includes the preprocessing, on the CPU in float32."""
    graph = run.normalization.in_front_of(run.network)
    if isinstance(run.normalization, Whitening) and not whitened:
        graph = run.normalization.in_front_of_pixels(graph)
    return copy.deepcopy(graph).to("cpu", torch.float32).eval()


def _checked(graph: nn.Module, images: Tensor) -> bytes:
    """Return the ONNX model, after a comparison of its logits with those of the network."""
    onnxruntime = require("onnxruntime", extra="fast")
    try:
        with evaluating(graph):
            model = to_onnx(graph, images)
            session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
            batches = [images[:count] for count in BATCHES]
            pairs = [(torch.from_numpy(session.run(None, {"images": b.numpy()})[0]), graph(b.clone())) for b in batches]
    except Exception as error:  # exporters raise many kinds of exceptions
        cause = error.__cause__ or error
        reason = str(cause).strip().partition("\n")[0].rstrip(".") or type(error).__name__
        raise InputError(f"this network cannot be exported to ONNX: {reason}.") from error
    change = max(float((exported - logits).abs().max()) for exported, logits in pairs)
    largest = max(float(logits.abs().max()) for _, logits in pairs)
    if not change <= TOLERANCE * max(1.0, largest):
        raise InputError(f"this network cannot be exported to ONNX: the export would change a logit by {change:.1g}.")
    return model


def _metadata(run: Run, whitened: bool) -> dict[str, str]:
    """Return what a reader of the file needs to know."""
    expected = "float32 pixels / 255, from 0 to 1"
    if isinstance(run.normalization, Identity):
        expected = "float32 images as in training"
    elif whitened:
        expected = "float32 images after ZCA whitening, which is not part of the graph"
    metadata = {
        "apac_version": version("augmented-pattern-classification"),
        "input": expected,
        "classes": json.dumps(run.classes),
        "image_shape": json.dumps(run.image_shape),
    }
    with suppress(InputError):  # a deformation that cannot be stored
        metadata["deformation"] = json.dumps(run.deformation.to_json())
    if run.choice is not None:
        metadata["strength"], metadata["combine"] = str(run.choice.strength), run.choice.combine
    return metadata
