"""A network in an ONNX file, run by ONNX Runtime."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from apac.errors import InputError
from apac.inference.engine import Network, Prepared


def from_onnx(path: str | os.PathLike[str]) -> Network:
    """The network of an .onnx file with one input of images, (N, C, H, W) float32; its first output counts."""
    try:
        import onnxruntime
    except ImportError:
        raise InputError(
            "ONNX Runtime is not installed; install it, or this package with its extra: "
            "pip install 'augmented-pattern-classification[fast]'"
        ) from None
    if not Path(path).is_file():
        raise InputError(f"there is no file {path}; give an .onnx file.")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # the threads of a decision each call it
    options.log_severity_level = 4  # what fails is said below
    try:
        session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of onnxruntime's own kinds
        raise InputError(f"{path} cannot be read as an ONNX network: {_first_line(error)}") from error
    inputs = session.get_inputs()
    if len(inputs) != 1 or inputs[0].type != "tensor(float)":
        kinds = ", ".join(f"{each.name}: {each.type}" for each in inputs)
        raise InputError(f"{path} must have one input of float32 images, it has {kinds}.")
    first = session.get_outputs()[0]
    if not first.type.startswith("tensor("):
        raise InputError(
            f"the first output of {path}, {first.name}, must be a tensor (images, classes), it is a {first.type}; "
            f"export the network without it, from scikit-learn with the option zipmap=False."
        )
    fixed = inputs[0].shape[0] if inputs[0].shape and isinstance(inputs[0].shape[0], int) else None

    def run(images: Tensor) -> Tensor:
        batch = images.detach().to("cpu", torch.float32)
        # A file may be made for one number of images: the last ones are filled up.
        parts = batch.split(fixed) if fixed else [batch]
        try:
            each = [_part(session, inputs[0].name, part, fixed or len(part)) for part in parts]
        except Exception as error:
            wanted = tuple(inputs[0].shape)
            raise InputError(
                f"{path} takes images of shape {wanted}, got {tuple(images.shape)}: {_first_line(error)}"
            ) from error
        return torch.cat(each)

    return Prepared(run)


def _part(session: Any, name: str, images: Tensor, size: int) -> Tensor:
    filled = functional.pad(images, (0, 0) * (images.ndim - 1) + (0, size - len(images)))
    return torch.from_numpy(session.run(None, {name: filled.contiguous().numpy()})[0])[: len(images)]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
