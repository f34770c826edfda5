"""The OpenAPI document, with the names, shapes and limits of this server.

What it cannot say: data has as many numbers as the shape says; files are readable pictures; a query has passes, or
error and limit, but not both. Such requests are refused although the document allows them.
"""

from __future__ import annotations

import math
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from apac.classify.rules.base import PASSES_PER_UPDATE
from apac.serve.protocol import Datatype, InferRequest, accepted
from apac.serve.services import Services
from apac.validation import MAX_INTEGER

Schema = dict[str, Any]
NULL: Schema = {"type": "null"}


def document(app: FastAPI, services: Services, *, with_token: bool) -> Schema:
    """Return the document of an application; it is made once."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = document["components"].setdefault("schemas", {})
        request = InferRequest.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= request.pop("$defs", {}) | {"InferRequest": request}
        bounds = _bounds(services)
        parameters = schemas["Parameters"]
        for name, schema in parameters["properties"].items():
            _restrict(schema, bounds.get(name, {}))
        parameters["anyOf"] = [{"properties": {"passes": NULL}}, {"properties": {"error": NULL, "limit": NULL}}]
        schemas["RequestInput"]["anyOf"] = _inputs(services)
        for path in document["paths"].values():
            for parameter in (parameter for route in path.values() for parameter in route.get("parameters", ())):
                _restrict(parameter["schema"], bounds.get(parameter["name"], {}))
        if with_token:
            document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"token": []}]
        app.openapi_schema = document
    return app.openapi_schema


def _bounds(services: Services) -> dict[str, Schema]:
    names, limits = list(services.models), services.limits
    classes = max(len(model.run.classes) for model in services.models.values())
    return {
        "name": {"enum": names},
        "model": {"enum": names},
        "passes": {"minimum": 1, "maximum": limits.passes},
        "error": {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
        "limit": {"minimum": PASSES_PER_UPDATE, "maximum": limits.passes},
        "seed": {"minimum": 0, "maximum": MAX_INTEGER},
        "top_k": {"minimum": 1, "maximum": classes},
    }


def _restrict(schema: Schema, bounds: Schema) -> None:
    """Add bounds to the schema of a value that may be null."""
    for option in schema.get("anyOf", [schema]):
        if option.get("type") != "null":
            option |= bounds


def _inputs(services: Services) -> list[Schema]:
    """Return the input tensors that some model takes: datatype, shape and data go together."""
    models = services.models.values()
    kinds = sorted({(kind, m.run.image_shape) for m in models for kind in accepted(m) if kind != "BYTES"})
    options = [_numbers(kind, shape, services.limits.images) for kind, shape in kinds]
    return [*options, _files(services.limits.images)] if any(model.takes_pictures for model in models) else options


def _numbers(datatype: Datatype, image_shape: tuple[int, int, int], images: int) -> Schema:
    number: Schema = {"type": "integer", "minimum": 0, "maximum": 255} if datatype == "UINT8" else {"type": "number"}
    flat = {"minItems": math.prod(image_shape), "items": number}
    nested = {"minItems": 1, "items": {"type": "array"}}
    return _option(datatype, _shape(images, *image_shape), {"anyOf": [flat, nested]})


def _files(images: int) -> Schema:
    file = {"type": "string", "contentEncoding": "base64"}
    data = {"minItems": 1, "items": {"anyOf": [file, {"type": "array", "items": file}]}}
    return _option("BYTES", {"anyOf": [_shape(images), _shape(images, 1)]}, data)


def _option(datatype: Datatype, shape: Schema, data: Schema) -> Schema:
    return {"properties": {"datatype": {"const": datatype}, "shape": shape, "data": data}}


def _shape(images: int, *rest: int) -> Schema:
    items = [{"type": "integer", "minimum": 1, "maximum": images}, *({"const": size} for size in rest)]
    return {"prefixItems": items, "minItems": len(items), "maxItems": len(items)}
