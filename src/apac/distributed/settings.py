"""What determines the result of a job, so that differences between processes can be named."""

from __future__ import annotations

import hashlib
import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from apac.distributed.file_list import STANDARD_INPUT
from apac.distributed.tables import Format
from apac.evaluation.reliability import Reliability
from apac.inference.engine import is_thread_safe
from apac.runs.file_classifier import FileClassifier
from apac.runs.provenance import PACKAGES, code_version, installed_version
from apac.validation import shortened


def settings_of(decider: FileClassifier, reliability: Reliability | None, format: Format) -> dict[str, Any]:
    """Describe what determines the result, apart from the files."""
    classifier = decider.classifier
    settings: dict[str, Any] = {
        "format": format,
        "network": _network_digest(decider),
        "classes": list(decider.classes),
        "image shape": list(decider.image_shape),
        "fit": decider.fit,
        "digits": decider.digits,
        "max pixels": decider.max_pixels,
        "plain": decider.plain is not None,
        "rule": repr(classifier.rule),
        "seed": classifier.seed,
        "combine": classifier.combine,
        "strength": decider.strength,
        "temperature": classifier.temperature,
        "deformation": repr(classifier.deformation),
        "parameters of the deformation": _digest(json.dumps(classifier.deformation.to_json(), sort_keys=True)),
        "evaluation": None if reliability is None else _digest(json.dumps(asdict(reliability), sort_keys=True)),
        # Parts of one job come from one version of the code, also of installations that can be edited.
        "version of apac": code_version(),
        **{f"version of {name}": installed_version(name) for name in (*PACKAGES[1:], "pillow")},
    }
    if not (classifier.deformation.thread_safe and is_thread_safe(classifier.network)):
        settings["number of threads"] = torch.get_num_threads()  # the network's batches and its rounding depend on it
    return json.loads(json.dumps(settings))  # type: ignore[no-any-return]  # tuples as lists, as they are read again


def described(settings: Mapping[str, Any], sources: Sequence[str], part_size: int | None) -> dict[str, Any]:
    """Return what determines the result and how it is divided."""
    return {**settings, "part size": part_size, "list of sources": [absolute_source(source) for source in sources]}


def first_difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str | None:
    """Name the first setting that differs, with both values."""
    for name in (*theirs, *ours):
        stored, wanted = (textwrap.shorten(str(values.get(name)), 200) for values in (theirs, ours))
        if theirs.get(name) != ours.get(name):
            return f"its {shortened(name)} is {stored}, not {wanted}"
    return None


def absolute_source(source: str) -> str:
    if source == STANDARD_INPUT:
        return source
    return f"@{os.path.abspath(source[1:])}" if source.startswith("@") else os.path.abspath(source)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _network_digest(decider: FileClassifier) -> str:
    """Return a hash of the layers and weights, and of the normalization."""
    network = decider.classifier.network
    assert isinstance(network, nn.Module)
    digest = hashlib.sha256(f"{network}{decider.normalization.kind}".encode())
    tensors = {**network.state_dict(), **decider.normalization.tensors()}
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
