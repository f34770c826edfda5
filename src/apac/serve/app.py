"""The application: models, routes and error responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from apac.data.image_file import without_warnings
from apac.serve.document import document
from apac.serve.guard import CLIENT_LEFT, ClientLeft, Guard, response
from apac.serve.limits import Limits
from apac.serve.metrics import Metrics
from apac.serve.model import Model
from apac.serve.refusal import Refusal
from apac.serve.routes import add_protocol, add_upload
from apac.serve.services import Services

STATIC = Path(__file__).parent / "static"
POLL_SECONDS = 0.05
SENTENCES = {404: "there is nothing at this address.", 405: "this address does not take that method."}


def build(models: Sequence[Model], limits: Limits, token: bytes | None = None) -> Guard:
    """Return the ASGI application that serves these models. Its lifespan starts and stops their engines."""
    services = Services({model.name: model for model in models}, limits, Metrics())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with without_warnings():
            for model in models:
                model.engine.start()
            if services.before_listening is not None:
                while not services.is_ready and not services.draining:
                    await asyncio.sleep(POLL_SECONDS)
                services.before_listening.set()
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
    app.openapi = lambda: document(app, services, with_token=token is not None)  # type: ignore[method-assign]
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
