"""A decision described for people: the JSON of an upload, and the events of one that is watched."""

from __future__ import annotations

import json
from typing import Any

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from apac.classify.combine import COMBINATIONS
from apac.classify.decision import Decision
from apac.classify.pass_parameters import sample_shared
from apac.classify.session import Settings, Update
from apac.data.base import scale_pixels
from apac.evaluation.records import SETTLED
from apac.serve.model import Model
from apac.serve.pictures import png
from apac.serve.protocol import flat


class ClassScore(BaseModel):
    label: int
    class_: str = Field(alias="class")
    log_score: float | None  # mean log-probability
    score: float | None  # what ranks the classes: the log_score, or for combine=sum the mean probability
    standard_error: float | None  # of the score
    probability: float | None


class Plain(BaseModel):
    """The conventional prediction: one pass of the undeformed image."""

    label: int
    class_: str = Field(alias="class")
    probability: float | None


class Classified(BaseModel):
    """The decision of one image. null stands for a value that does not exist, such as a spread after one pass."""

    model: str
    label: int
    class_: str | None = Field(alias="class")
    settled: bool | None  # None for a fixed number of passes
    stopped: str
    passes: int
    combine: str
    quantity: str
    probability: float | None
    margin: float | None
    classes: list[ClassScore]
    plain: Plain
    notes: list[str]


SHOWN = 8  # virtual samples of an event
MAX_CLASSES = 20  # described, unless the request says how many
GROWTH = 1.2  # of the passes between two events: thousands of passes become a few dozen events


def describe(
    model: Model, update: Update, settings: Settings, notes: tuple[str, ...], top_k: int | None = None
) -> dict[str, Any]:
    """Return what is known about an image: the classes from best to worst, and the plain prediction beside them."""
    decision = model.decision([update], settings)
    classes = model.run.classes
    shown = decision.top(top_k or min(len(classes), MAX_CLASSES))[0].tolist()
    columns = {
        "log_score": flat(decision.log_scores[0]),
        "score": flat(decision.ranking[0]),
        "standard_error": flat(decision.standard_errors[0]),
        "probability": flat(decision.probabilities[0]),
    }
    label = int(decision.labels)
    return {
        "model": model.name,
        "label": label,
        "class": classes[label] if label >= 0 else None,
        "settled": SETTLED.get(decision.stopped[0]),
        "stopped": decision.stopped[0],
        "passes": int(decision.passes),
        "combine": decision.combine,
        "quantity": f"mean {COMBINATIONS[decision.combine].quantity}",
        "probability": columns["probability"][label] if label >= 0 else None,
        "margin": flat(decision.margins)[0],
        "classes": [
            {"label": c, "class": classes[c], **{name: values[c] for name, values in columns.items()}} for c in shown
        ],
        "plain": _plain(model, update.plain),
        "notes": list(notes),
    }


def _plain(model: Model, log_probabilities: Tensor) -> dict[str, Any]:
    label = int(log_probabilities.argmax())
    probability = float(log_probabilities[label].exp())
    return {
        "label": label,
        "class": model.run.classes[label],
        "probability": probability if probability == probability else None,
    }


def virtual_samples(model: Model, pixels: Tensor, settings: Settings, start: int, stop: int) -> list[dict[str, Any]]:
    """Return pictures of pixels (C, H, W) in a few of the passes start … stop - 1, deformed as in these passes.

    A run with ZCA deforms whitened images, which are hard to recognize: here the same parameters deform the pixels.
    """
    numbers = range(start, stop, max(1, -(-(stop - start) // SHOWN)))
    deformation = model.classifier.deformation.sets[0]
    image = scale_pixels(pixels[None])
    with torch.no_grad():
        samples = [
            deformation.apply(image, sample_shared(deformation, image, settings.seed, range(number, number + 1)))[0]
            for number in numbers
        ]
    return [{"pass": number, "image": png(sample)} for number, sample in zip(numbers, samples, strict=True)]


def is_due(decision: Decision, shown: int) -> bool:
    """Return whether to show an update, `shown` passes after the start having been shown already."""
    return decision.stopped != ("",) or int(decision.passes) >= GROWTH * shown


def event(name: str, payload: dict[str, Any]) -> bytes:
    """Return a server-sent event."""
    return f"event: {name}\ndata: {json.dumps(payload, allow_nan=False)}\n\n".encode()
