"""Convert a network to the ONNX format."""

from __future__ import annotations

import io
import warnings

import torch
from torch import Tensor, nn

from apac.inference.locks import ProcessLock

_exporting = ProcessLock()  # the exporter of torch keeps its state in global variables


def to_onnx(network: nn.Module, examples: Tensor) -> bytes:
    """Return a network in evaluation mode as an ONNX model, from `images` (n, C, H, W) to `logits`, for any n.

    Requires the package onnx.
    """
    model = io.BytesIO()
    with _exporting, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # A network that reads the values of a tensor may take another branch for other images.
        warnings.simplefilter("error", torch.jit.TracerWarning)  # type: ignore[attr-defined]
        torch.onnx.export(
            network,
            (examples,),
            model,  # type: ignore[arg-type]
            input_names=["images"],
            output_names=["logits"],
            dynamic_axes={"images": {0: "n"}, "logits": {0: "n"}},
            dynamo=False,
        )
    return model.getvalue()
