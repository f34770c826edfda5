"""The JSON of the Open Inference Protocol v2 (KServe, Triton, MLServer), REST."""

from __future__ import annotations

import base64
import binascii
import math
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from apac import limits
from apac.classify.decision import Decision
from apac.serve.headers import check_headers
from apac.serve.model import Model, Parameters
from apac.serve.pictures import read_picture
from apac.serve.refusal import Refusal, bad_request, unavailable

Datatype = Literal["FP32", "UINT8", "BYTES"]
INPUT = "images"
OUTPUTS = {  # name: (datatype, whether there is one value per class)
    "label": ("INT64", False),
    "class": ("BYTES", False),
    "log_scores": ("FP64", True),
    "probabilities": ("FP64", True),
    "standard_errors": ("FP64", True),
    "margin": ("FP64", False),
    "passes": ("INT64", False),
    "stopped": ("BYTES", False),
}
COUNT = "data must have as many numbers as the shape says."
TOP = {"top_labels": "INT64", "top_classes": "BYTES"}  # if the request has top_k


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class RequestInput(_Strict):
    """Images (n, C, H, W) as FP32 or UINT8, or n image files in base64 as BYTES."""

    name: str
    datatype: Datatype
    shape: list[int] = Field(min_length=1, max_length=4)
    data: list[Any]


class RequestOutput(_Strict):
    name: str


class InferRequest(_Strict):
    id: str | None = Field(default=None, max_length=limits.REQUEST_ID)
    inputs: list[RequestInput] = Field(min_length=1, max_length=1)
    outputs: list[RequestOutput] | None = None
    parameters: Parameters = Field(default_factory=Parameters)


class ResponseOutput(BaseModel):
    name: str
    datatype: str
    shape: list[int]
    data: list[Any]


class InferResponse(BaseModel):
    model_name: str
    id: str | None = None
    outputs: list[ResponseOutput]


class ErrorResponse(BaseModel):
    error: str


class Ready(BaseModel):
    ready: bool


class ModelReady(Ready):
    name: str


class TensorMetadata(BaseModel):
    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    parameters: dict[str, Any]


def accepted(model: Model) -> list[Datatype]:
    """Return the datatypes of images that a model takes."""
    takes: dict[Datatype, bool] = {"FP32": True, "UINT8": model.takes_pixels, "BYTES": model.takes_pictures}
    return [datatype for datatype, is_taken in takes.items() if is_taken]


def metadata(model: Model) -> ModelMetadata:
    classes = len(model.run.classes)
    datatype = "UINT8" if model.takes_pixels else "FP32"
    return ModelMetadata(
        name=model.name,
        versions=[],
        platform="apac",
        inputs=[TensorMetadata(name=INPUT, datatype=datatype, shape=[-1, *model.run.image_shape])],
        outputs=[
            TensorMetadata(name=name, datatype=kind, shape=[-1, classes] if per_class else [-1])
            for name, (kind, per_class) in OUTPUTS.items()
        ],
        parameters={"classes": list(model.run.classes), "datatypes": accepted(model)},
    )


def check_values(model: Model, body: bytes) -> None:
    """Refuse a body with more values than any request has, before Python makes an object of each.

    Millions of lists take ten seconds, in which nothing else happens.
    """
    channels, height, width = model.run.image_shape
    lists = model.limits.images * (1 + channels * (1 + height)) + limits.OTHER_VALUES
    values = model.limits.images * channels * height * width + lists
    if body.count(b"[") + body.count(b"{") > lists or body.count(b",") > values:
        raise bad_request("the body has more values than the images of a request.")


def images_of(model: Model, tensor: RequestInput, canceled: threading.Event) -> Tensor:
    """Return the images of a request as the classifier takes them, (n, C, H, W), unless the request is given up."""
    expected = "n" if tensor.datatype == "BYTES" else f"n, {', '.join(map(str, model.run.image_shape))}"
    rest = tensor.shape[1:]
    fits = rest in ([], [1]) if tensor.datatype == "BYTES" else rest == list(model.run.image_shape)
    if not fits or tensor.shape[0] < 1:
        raise bad_request(f"the shape of {tensor.datatype} images must be [{expected}] with n of at least 1.")
    count = tensor.shape[0]
    if count > model.limits.images:
        raise Refusal(413, f"a request may have at most {model.limits.images} images.")
    if tensor.datatype == "BYTES":
        if not model.takes_pictures:
            raise bad_request("this model takes no image files; send FP32 images.")
        contents = [_content(file, index) for index, file in enumerate(_files(tensor, count))]
        check_headers(contents, model.limits)
        return model.normalize(torch.stack(list(_pictures(model, contents, canceled))))
    values = _numbers(tensor.data, tensor.shape)
    if tensor.datatype == "UINT8":
        if not model.takes_pixels:
            raise bad_request("this model takes no pixels; send FP32 images.")
        if values.dtype.kind not in "iu" or values.min() < 0 or values.max() > 255:
            raise bad_request("UINT8 data must be integers between 0 and 255.")
        return model.normalize(torch.from_numpy(values.astype(np.uint8)).view(tensor.shape))
    with np.errstate(over="ignore"):
        images = torch.from_numpy(values.astype(np.float32)).view(tensor.shape)
    model.check_images(images)
    return images


def _numbers(data: list[Any], shape: list[int]) -> NDArray[Any]:
    """Return numbers, flat or nested as the shape says, as a flat array.

    They are counted and checked before NumPy sees them: one long string would make every element as long.
    """
    parts: list[Any] = [data]
    is_nested = len(data) > 0 and type(data[0]) is list
    for size in shape if is_nested else (math.prod(shape),):
        if not all(type(part) is list and len(part) == size for part in parts):
            raise bad_request(COUNT)
        parts = [value for part in parts for value in part]
    if not set(map(type, parts)) <= {int, float}:
        raise bad_request(COUNT)
    values = np.asarray(parts)
    if values.dtype.kind not in "iuf":  # integers of more than 64 bits
        raise bad_request(COUNT)
    return values


def _files(tensor: RequestInput, count: int) -> list[str]:
    files = [file for entry in tensor.data for file in (entry if isinstance(entry, list) else [entry])]
    if len(files) != count or not all(isinstance(file, str) for file in files):
        raise bad_request("BYTES data must have as many strings as the shape says, each a file in base64.")
    return files


def _content(file: str, index: int) -> bytes:
    try:
        return base64.b64decode(file, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request(f"image {index} is not valid base64.") from None


def _pictures(model: Model, contents: list[bytes], canceled: threading.Event) -> Iterator[Tensor]:
    for index, content in enumerate(contents):
        if canceled.is_set():
            raise unavailable("the request was given up.")  # the client has left, or has this answer
        yield read_picture(model.run, content, model.limits, f"image {index}")[0]


def requested(request: InferRequest) -> list[str]:
    """Return the names of the outputs to send, or refuse unknown ones."""
    available = [*OUTPUTS, *(TOP if request.parameters.top_k is not None else ())]
    if request.outputs is None:
        return available
    names = [output.name for output in request.outputs]
    if not names or not set(names) <= set(available):
        raise bad_request(f"outputs must be among {', '.join(available)}.")
    return names


def outputs(model: Model, decision: Decision, names: Iterable[str], top_k: int | None) -> list[ResponseOutput]:
    """Return the tensors of a decision of n images."""
    classes = model.run.classes
    values: dict[str, Any] = {
        "label": decision.labels,
        "class": [classes[label] if label >= 0 else "" for label in decision.labels.tolist()],
        "log_scores": decision.log_scores,
        "probabilities": decision.probabilities,
        "standard_errors": decision.standard_errors,
        "margin": decision.margins,
        "passes": decision.passes,
        "stopped": list(decision.stopped),
    }
    if top_k is not None:
        top = decision.top(top_k)
        values |= {"top_labels": top, "top_classes": [classes[label] for label in top.flatten().tolist()]}
    count = len(decision.labels)
    widths = {name: len(classes) for name, (_, per_class) in OUTPUTS.items() if per_class}
    widths |= dict.fromkeys(TOP, top_k or 0)
    kinds = {name: kind for name, (kind, _) in OUTPUTS.items()} | TOP
    return [
        ResponseOutput(
            name=name,
            datatype=kinds[name],
            shape=[count, widths[name]] if name in widths else [count],
            data=flat(values[name]),
        )
        for name in names
    ]


def flat(values: Tensor | list[Any]) -> list[Any]:
    """Return the numbers row by row; JSON has no NaN, which becomes null."""
    if not isinstance(values, Tensor):
        return values
    numbers = values.flatten().tolist()
    return [None if number != number else number for number in numbers] if values.is_floating_point() else numbers
