"""A network in an ONNX file, run by ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from apac import limits
from apac.errors import InputError, require
from apac.inference.engine import Network, Prepared
from apac.inference.onnx_check import check_onnx
from apac.validation import shortened


def from_onnx(path: str | os.PathLike[str], *, max_bytes: int = limits.ONNX_BYTES) -> Network:
    """Load a network from an .onnx file. Its input is a float32 tensor of images (N, C, H, W).

    Only the first output is used. If the file was exported with a fixed batch size, batches are split and padded.
    A file of more than `max_bytes`, by default 174 MiB, is refused. Requires the extra `fast`.

    >>> import apac
    >>> apac.from_onnx("missing.onnx")
    Traceback (most recent call last):
    apac.errors.InputError: there is no file missing.onnx; give an .onnx file.
    """
    onnxruntime = require("onnxruntime", extra="fast")
    if not Path(path).is_file():
        raise InputError(f"there is no file {path}; give an .onnx file.")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # every worker thread calls it
    options.log_severity_level = 4  # failures are raised below
    check_onnx(Path(path), max_bytes)
    try:
        session = onnxruntime.InferenceSession(
            os.fspath(path),
            options,
            providers=["CPUExecutionProvider"],
            enable_fallback=0,  # the same provider again, which would print its error
        )
    except Exception as error:  # ONNX Runtime raises its own exception classes
        raise InputError(f"{path} cannot be read as an ONNX network: {shortened(error)}.") from error
    inputs, outputs = _described(path, session.get_inputs()), _described(path, session.get_outputs())
    if len(inputs) != 1 or inputs[0].type != "tensor(float)":
        kinds = ", ".join(f"{tensor.name}: {tensor.type}" for tensor in inputs)
        raise InputError(f"{path} must have one input of float32 images, it has {shortened(kinds or 'none')}.")
    if not outputs:
        raise InputError(f"{path} has no output; export a network that returns logits.")
    first = outputs[0]
    if not first.type.startswith("tensor("):
        raise InputError(
            f"the first output of {path}, {shortened(first.name)}, must be a tensor (images, classes), it is a "
            f"{first.type}; export the network without it, from scikit-learn with the option zipmap=False."
        )
    shape = inputs[0].shape
    fixed_size = shape[0] if shape and isinstance(shape[0], int) else None
    if fixed_size is not None and fixed_size > limits.ONNX_BATCH:
        raise InputError(f"{path} takes {fixed_size:,} images at a time; export it for at most {limits.ONNX_BATCH:,}.")

    def run(images: Tensor) -> Tensor:
        images_on_cpu = images.detach().to("cpu", torch.float32)
        batches = images_on_cpu.split(fixed_size) if fixed_size else [images_on_cpu]
        try:
            logits = [_run_padded(session, inputs[0].name, batch, fixed_size or len(batch)) for batch in batches]
            return torch.cat(logits)
        except Exception as error:
            raise InputError(
                f"{path} takes images of shape {tuple(shape)}, got {tuple(images.shape)}: {shortened(error)}."
            ) from error

    return Prepared(run)


class _Described(NamedTuple):
    """An input or output of a network."""

    name: str
    type: str
    shape: list[int | str | None]


def _described(path: str | os.PathLike[str], tensors: Sequence[Any]) -> list[_Described]:
    try:
        return [_Described(tensor.name, tensor.type, tensor.shape) for tensor in tensors]
    except UnicodeDecodeError:
        raise InputError(f"{path} has names that are not UTF-8; export the network again.") from None


def _run_padded(session: Any, name: str, images: Tensor, size: int) -> Tensor:
    """Run up to `size` images, padded with zero images to exactly `size`."""
    padded = functional.pad(images, (0, 0) * (images.ndim - 1) + (0, size - len(images)))
    return torch.from_numpy(session.run(None, {name: padded.contiguous().numpy()})[0])[: len(images)]
