"""The routes of the protocol and of the page."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, File, Query, Request, UploadFile
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse
from pydantic import ValidationError
from torch import Tensor

from apac.classify.combine import Combine
from apac.classify.decision import Decision
from apac.classify.session import Settings
from apac.serve.engine import FAILED
from apac.serve.events import Classified, describe, event, is_due, virtual_samples
from apac.serve.headers import check_headers
from apac.serve.model import Model, Parameters
from apac.serve.pictures import read_picture
from apac.serve.protocol import (
    ErrorResponse,
    InferRequest,
    InferResponse,
    ModelMetadata,
    ModelReady,
    Ready,
    check_values,
    images_of,
    metadata,
    outputs,
    requested,
)
from apac.serve.refusal import bad_request
from apac.serve.services import Services

ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": ErrorResponse}, 503: {"model": ErrorResponse}}
JSON_BODY = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/InferRequest"}}}}
QUERY = {"model", *Parameters.model_fields}  # of /classify
EVENTS = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}


def add_protocol(app: FastAPI, services: Services) -> None:
    """Add the routes of the Open Inference Protocol v2, and /metrics."""

    @app.get("/v2", responses=ERRORS)
    async def server_metadata() -> dict[str, Any]:
        return {"name": "apac", "version": app.version, "extensions": [], "models": list(services.models)}

    @app.get("/v2/health/live", responses=ERRORS)
    async def live() -> dict[str, bool]:
        return {"live": True}

    @app.get("/v2/health/ready", response_model=Ready, responses={**ERRORS, 503: {"model": Ready | ErrorResponse}})
    async def ready() -> Response:
        is_ready = services.is_ready
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    @app.get("/v2/models/{name}", responses=ERRORS)
    async def model_metadata(name: str) -> ModelMetadata:
        return metadata(services.model(name))

    @app.get(
        "/v2/models/{name}/ready",
        response_model=ModelReady,
        responses={**ERRORS, 503: {"model": ModelReady | ErrorResponse}},
    )
    async def model_ready(name: str) -> Response:
        is_ready = services.model(name).engine.ready.is_set() and not services.draining
        return JSONResponse({"name": name, "ready": is_ready}, 200 if is_ready else 503)

    @app.post(
        "/v2/models/{name}/infer",
        response_model=InferResponse,
        responses=ERRORS,
        openapi_extra={"requestBody": {"required": True, **JSON_BODY}},
    )
    async def infer(name: str, request: Request) -> Response:
        model, body = services.model(name), await request.body()
        if "inference-header-content-length" in request.headers:
            raise bad_request(
                "binary tensors are not supported; send the data as JSON, in tritonclient binary_data=False."
            )

        async def work() -> bytes:
            asked, images, settings = await services.decode(_parse, model, body)
            decision = model.decision(await model.engine.decide(images, settings), settings)
            services.count(request, model, decision)
            return await services.in_thread(_answer, model, asked, decision)

        answer = await services.in_time(request, services.deadline(), work())
        return Response(answer, media_type="application/json")

    @app.get("/metrics", response_class=Response, responses={**ERRORS, 200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        return Response(services.metrics.text(services.models.values()), media_type="text/plain; version=0.0.4")


def _parse(model: Model, body: bytes, canceled: threading.Event) -> tuple[InferRequest, Tensor, Settings]:
    check_values(model, body)
    try:
        asked = InferRequest.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if problem["type"] == "json_invalid":
            raise bad_request("the body is not valid JSON.") from None
        place = ".".join(str(part) for part in problem["loc"]) or "the body"  # names of the schema, not of the request
        raise bad_request(f"{place} is missing or not valid; /openapi.json describes the requests.") from None
    settings = model.settings(asked.parameters)
    requested(asked)
    return asked, images_of(model, asked.inputs[0], canceled), settings


def _answer(model: Model, asked: InferRequest, decision: Decision) -> bytes:
    tensors = outputs(model, decision, requested(asked), asked.parameters.top_k)
    answer = InferResponse(model_name=model.name, id=asked.id, outputs=tensors)
    return answer.model_dump_json(exclude={"id"} if asked.id is None else None).encode()


def add_upload(app: FastAPI, services: Services, static: Path) -> None:
    """Add the page, and the upload that it and people use."""

    @app.get("/", response_class=FileResponse, include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(static / "index.html")

    @app.get("/models", include_in_schema=False)
    async def described() -> list[dict[str, Any]]:
        """What the page asks for."""
        return [
            {"name": model.name, "classes": len(model.run.classes), "draws": model.run.takes_digits}
            for model in services.models.values()
            if model.takes_pictures
        ]

    @app.post("/classify", response_model=Classified, responses={**ERRORS, 200: EVENTS})
    async def classify(
        request: Request,
        image: Annotated[UploadFile, File(description="a PNG, JPEG, WebP or BMP file")],
        model: Annotated[str | None, Query(description="a name from /v2; by default the first")] = None,
        passes: Annotated[int | None, Query()] = None,
        error: Annotated[float | None, Query()] = None,
        limit: Annotated[int | None, Query()] = None,
        seed: Annotated[int | None, Query()] = None,
        combine: Annotated[Combine | None, Query()] = None,
        top_k: Annotated[int | None, Query()] = None,
    ) -> Response:
        """Classify an image file. With `Accept: text/event-stream`, the response shows the decision being made."""
        if unknown := set(request.query_params) - QUERY:
            raise bad_request(f"there is no parameter {min(unknown)[:100]!r}; use {', '.join(sorted(QUERY))}.")
        chosen = services.model(next(iter(services.models)) if model is None else model)
        if not chosen.takes_pictures:
            raise bad_request("this model takes no image files; send FP32 images to its infer route.")
        settings = chosen.settings(
            Parameters(passes=passes, error=error, limit=limit, seed=seed, combine=combine, top_k=top_k)
        )
        deadline, content = services.deadline(), await image.read()
        pixels, images, notes = await services.in_time(request, deadline, services.in_thread(_read, chosen, content))
        if "text/event-stream" in request.headers.get("accept", ""):
            stream = _watch(services, request, chosen, pixels, images, settings, notes, deadline)
            first = await anext(stream)  # a refusal is still a response of its own
            return StreamingResponse(_chained(first, stream), media_type="text/event-stream")
        update = (await services.in_time(request, deadline, chosen.engine.decide(images, settings)))[0]
        services.count(request, chosen, update.decision)
        return JSONResponse(describe(chosen, update, settings, notes, top_k))


def _read(model: Model, content: bytes) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Return the pixels (C, H, W) of a file, the images (1, C, H, W) for the classifier, and notes."""
    check_headers([content], model.limits)
    pixels, notes = read_picture(model.run, content, model.limits, "the image")
    return pixels, model.normalize(pixels[None]), notes


async def _chained(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for part in rest:
        yield part


async def _watch(
    services: Services,
    request: Request,
    model: Model,
    pixels: Tensor,
    images: Tensor,
    settings: Settings,
    notes: tuple[str, ...],
    deadline: float,
) -> AsyncIterator[bytes]:
    """Yield the events of an image while it is decided."""
    shown = 0
    async with model.engine.deciding(images, settings, watched=True) as updates:
        yield event("start", {"model": model.name, "limit": settings.rule.limit})
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    item = await updates.get()
            except TimeoutError:
                yield event("error", {"error": services.too_slow().sentence})
                return
            if item is None:
                yield event("error", {"error": FAILED})
                return
            update = item[1]
            if not is_due(update.decision, shown):
                continue
            passes = int(update.decision.passes)
            samples = await services.in_thread(virtual_samples, model, pixels, settings, shown, passes)
            shown = passes
            description = describe(model, update, settings, notes)
            yield event("decision" if update.is_final else "update", {**description, "samples": samples})
            if update.is_final:
                services.count(request, model, update.decision)
                return
