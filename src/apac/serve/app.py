"""The application: models, error responses, and the document that describes the routes."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from apac.classify.rules.base import PASSES_PER_UPDATE
from apac.serve.guard import ClientLeft, Guard, response
from apac.serve.limits import Limits
from apac.serve.metrics import Metrics
from apac.serve.model import MAX_SEED, Model
from apac.serve.protocol import InferRequest
from apac.serve.refusal import Refusal
from apac.serve.routes import Services, add_protocol, add_upload

STATIC = Path(__file__).parent / "static"
CLIENT_LEFT = 499  # as nginx logs it; the client does not see it
SENTENCES = {404: "there is nothing at this address.", 405: "this address does not take that method."}


def build(models: Sequence[Model], limits: Limits, token: bytes | None = None) -> Guard:
    """Return the ASGI application that serves these models. Its lifespan starts and stops their engines."""
    services = Services({model.name: model for model in models}, limits, Metrics())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Pillow about unusual files, each of which is either read or refused
            for model in models:
                model.engine.start()
            yield
            for model in models:
                model.engine.stop()
            services.close()

    app = FastAPI(
        title="apac",
        version=version("augmented-pattern-classification"),
        description="Classification by the expected log-probability over random deformations.",
        lifespan=lifespan,
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
    )
    app.state.services = services
    add_protocol(app, services)
    add_upload(app, services, STATIC)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    _add_errors(app)
    app.openapi = lambda: _document(app, services, with_token=token is not None)  # type: ignore[method-assign]
    return Guard(app, limits, services.metrics, token, lambda: services.draining)


def services_of(guard: Guard) -> Services:
    services: Services = guard.app.state.services  # type: ignore[attr-defined]
    return services


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        return response(error)

    @app.exception_handler(ClientLeft)
    async def left(request: Request, error: ClientLeft) -> Response:
        return Response(status_code=CLIENT_LEFT)

    @app.exception_handler(HTTPException)
    async def failed(request: Request, error: HTTPException) -> Response:
        answer = response(Refusal(error.status_code, SENTENCES.get(error.status_code, "the request cannot be read.")))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        place = ".".join(str(part) for part in error.errors()[0]["loc"])  # names of this document, not of the request
        return response(Refusal(400, f"{place} is missing or not valid; /openapi.json describes the requests."))

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        return response(Refusal(500, "the server failed to answer."))


def _document(app: FastAPI, services: Services, *, with_token: bool) -> dict[str, Any]:
    """Return the OpenAPI document, with the names of the models and the limits of this server."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = document["components"].setdefault("schemas", {})
        request = InferRequest.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= request.pop("$defs", {}) | {"InferRequest": request}
        bounds = _bounds(services)
        for name, schema in schemas["Parameters"]["properties"].items():
            _restrict(schema, bounds.get(name, {}))
        for path in document["paths"].values():
            for parameter in (parameter for route in path.values() for parameter in route.get("parameters", ())):
                _restrict(parameter["schema"], bounds.get(parameter["name"], {}))
        if with_token:
            document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"token": []}]
        app.openapi_schema = document
    return app.openapi_schema


def _bounds(services: Services) -> dict[str, dict[str, Any]]:
    names, limits = list(services.models), services.limits
    classes = max(len(model.run.classes) for model in services.models.values())
    return {
        "name": {"enum": names},
        "model": {"enum": names},
        "passes": {"minimum": 1, "maximum": limits.passes},
        "error": {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
        "limit": {"minimum": PASSES_PER_UPDATE, "maximum": limits.passes},
        "seed": {"minimum": 0, "maximum": MAX_SEED},
        "top_k": {"minimum": 1, "maximum": classes},
    }


def _restrict(schema: dict[str, Any], bounds: dict[str, Any]) -> None:
    """Add bounds to the schema of a value that may be null."""
    for option in schema.get("anyOf", [schema]):
        if option.get("type") != "null":
            option |= bounds
